# A file as an array of C: cmake -DIN=FILE -DOUT=FILE.c -DNAME=NAME -P embed.cmake
file(READ ${IN} bytes HEX)
string(LENGTH "${bytes}" digits)
math(EXPR n "${digits} / 2")
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "#include \"rl/reward_python.h\"\n\nconst unsigned char ${NAME}[] = {\n${bytes}};\nconst int64_t ${NAME}_bytes = ${n};\n")
