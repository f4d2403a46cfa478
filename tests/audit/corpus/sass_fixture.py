"""Leaves of what nvdisasm writes about a cubin the lines that an audit reads, for the corpus:

    nvcc -arch=sm_90 -cubin -o published.cubin published.cu
    nvdisasm published.cubin | python3 sass_fixture.py > published.sm_90.sass

Triton's PTX is assembled module by module with `ptxas -arch=sm_90a`.
"""

import re
import sys

KEPT = ("EIATTR_KPARAM_INFO", "EIATTR_PARAM_CBANK", "EIATTR_MAX_THREADS", "EIATTR_REQNTID")


def main():
    section, entry = "", False
    for line in sys.stdin:
        text = line.strip()
        if text.startswith(".target"):
            print(text)
        elif re.match(r"\.section\s", text):
            section, entry = text, False
            if ".text." in text or ".nv.info." in text:
                print(text)
        elif "//-----" in text and ".nv.info" in section:
            entry = any(text.endswith(name) for name in KEPT)
            if entry:
                print(text)
        elif ".nv.info" in section and entry and re.search(r"\.(byte|short|word)\s", text):
            print(text)
        elif ".text." in section and not re.search(r"\*/\s+NOP", text):
            if text.startswith("/*") or (text.endswith(":") and not text.startswith("/")):
                print(re.sub(r"\s+", " ", text))


main()
