/* Environments that speak messages: the tokens of an episode are those of the template's text of the whole
 * conversation, and what was drawn stays as it was drawn. A template that writes earlier turns otherwise is refused by
 * name and turn. */
#define _GNU_SOURCE
#include "base/mem.h"
#include "harness.h"
#include "rl/dialogue.h"
#include "rl/grpo_run.h"
#include "rl/reward_source.h"

/* A turn is <1>ROLE:CONTENT<2> on a line. */
#define TURN(content) "<1>{{ m.role }}:{{ " content " }}<2>{{ '\\n' }}"
#define TOOLS "{% if tools %}tools:{{ tools | map(attribute='name') | join(',') }}{{ '\\n' }}{% endif %}"
#define AS_IS TOOLS "{% for m in messages %}" TURN("m.content") "{% endfor %}" PROMPT
#define PROMPT "{% if add_generation_prompt %}<1>assistant:{% endif %}"
#define OF_ASSISTANT(content) \
    "{% for m in messages %}" TURN("(" content ") if m.role == 'assistant' else m.content") "{% endfor %}" PROMPT

/* Answers of a shell: a tool after the first completion, two messages after the second, the end after the third. */
#define SHELL(first, second)                                                                                          \
    "while IFS= read -r line; do id=${line#*'\"id\":\"'}; id=${id%%'\"'*}; n=${line%%'\"prompt_messages\"'*}; "       \
    "n=${n#*'\"turns\":'}; case $line in *'\"op\":\"reset\"'*) "                                                      \
    "echo \"{\\\"id\\\":$id,\\\"messages\\\":[{\\\"role\\\":\\\"user\\\",\\\"content\\\":\\\"go\\\"}],\\\"tools\\\":" \
    "[{\\\"name\\\":\\\"abc\\\"}]}\";; *'\"op\":\"end\"'*) echo \"{\\\"id\\\":$id,\\\"reward\\\":-1}\";; *) "         \
    "case $n in *completion*completion*completion*) echo \"{\\\"id\\\":$id,\\\"done\\\":true,\\\"reward\\\":1}\";; "  \
    "*completion*completion*) " second ";; *) " first ";; esac;; esac; done"
#define TOOL "echo \"{\\\"id\\\":$id,\\\"messages\\\":[{\\\"role\\\":\\\"tool\\\",\\\"content\\\":\\\"12\\\"}]}\""
#define TWO                                                                                                        \
    "echo "                                                                                                        \
    "\"{\\\"id\\\":$id,\\\"messages\\\":[{\\\"role\\\":\\\"tool\\\",\\\"content\\\":\\\"a\\\"},{\\\"role\\\":\\\"" \
    "user\\\",\\\"content\\\":\\\"so\\\"}]}\""

/* Two samples of a problem, with preset completions. */
typedef struct scene {
    ls_tokenizer *tokenizer;
    ls_chat *chat;
    ls_data *data;
    ls_world world;
    ls_episodes *episodes;
    const char *const *words; /* of the first sample, then of the second, three each */
    bool ends;                /* with <2> */
    int64_t round;
} scene;

static void write_text(const char *directory, const char *name, const char *text) {
    char path[512];
    FILE *file;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static ls_status draw(void *context, ls_request *requests, int64_t n, ls_error *err) {
    scene *s = context;
    for (int64_t i = 0; i < n; i++) {
        ls_request *r = &requests[i];
        const char *words = s->words[3 * r->sample_i + s->round];
        int32_t *ids;
        LS_TRY(ls_tokenizer_encode(s->tokenizer, words, (int64_t)strlen(words), false, &ids, &r->n_completion, err));
        memcpy(r->completion, ids, (size_t)r->n_completion * sizeof *ids);
        free(ids);
        if (s->ends) r->completion[r->n_completion++] = 2;
        for (int64_t k = 0; k < r->n_completion; k++) r->logprob[k] = -1.0f - (float)k;
        r->finish = LS_FINISH_STOP;
    }
    s->round++;
    return LS_OK;
}

static const ls_judge of_environment = {.is_environment = true, .weight = 1};

static void scene_open(scene *s, const char *template, const char *environment, const char *line) {
    ls_reward_command_options c;
    char path[512];
    ls_error err;
    *s = (scene){.ends = true};
    if (template != NULL) write_text(model_dir, "chat_template.jinja", template);
    assert_ok(ls_tokenizer_open(&s->tokenizer, model_dir, &err), err);
    if (template != NULL) assert_ok(ls_chat_open(&s->chat, model_dir, NULL, &err), err);
    ls_reward_command_init(&c);
    c.command = environment;
    assert_ok(ls_reward_command_open(&s->world.environment, &c, &err), err);
    if (line != NULL) {
        ls_data_options d = {.chat = model_dir};
        write_text(scratch, "line.jsonl", line);
        snprintf(path, sizeof path, "%s/line.jsonl", scratch);
        d.files = path;
        assert_ok(ls_data_open(&s->data, &d, &err), err);
    }
    s->world.tokenizer = s->tokenizer;
    s->world.chat = s->chat;
    s->world.model = model_dir;
    s->world.data = s->data;
    s->world.turns_max = 8;
    s->world.judges = &of_environment;
    s->world.n_judges = 1;
    assert_ok(ls_episodes_create(&s->episodes, 1, 2, 400, 40, &err), err);
}

static ls_status scene_run(scene *s, const char *const words[6], ls_error *err) {
    const ls_drawer drawer = {draw, s};
    s->words = words;
    s->round = 0;
    LS_TRY(ls_episodes_begin(s->episodes, &s->world, LS_TASK_SPLIT_TRAIN, 0, err));
    LS_TRY(ls_episodes_run(s->episodes, &s->world, &drawer, 0, 2, err));
    return ls_episodes_judge(s->episodes, &s->world, err);
}

static void scene_close(scene *s) {
    char path[512];
    ls_episodes_free(s->episodes);
    ls_reward_close(s->world.environment);
    ls_data_close(s->data);
    ls_chat_free(s->chat);
    ls_tokenizer_free(s->tokenizer);
    snprintf(path, sizeof path, "%s/chat_template.jinja", model_dir);
    (void)remove(path);
}

#define CHAT "{\"id\":\"q\",\"messages\":[{\"role\":\"user\",\"content\":\"go\"}],\"tools\":[{\"name\":\"abc\"}]}\n"

static const char *const plain[6] = {"calc", "x 7", "done", "b", "", "d"};

/* Text with special tokens, and beside it where it was drawn: '^' under each such token. */
static void assert_text(const scene *s, int64_t i, const char *text, const char *drawn) {
    const ls_episode *x = &s->episodes->list[i];
    char *found, marks[512];
    int64_t bytes;
    ls_error err;
    assert_ok(ls_tokenizer_decode(s->tokenizer, x->tokens, x->n, false, &found, &bytes, &err), err);
    assert_string_equal(found, text);
    for (int64_t k = 0; k < x->n; k++) marks[k] = x->drawn[k] != 0 ? '^' : '.';
    marks[x->n] = '\0';
    assert_string_equal(marks, drawn);
    for (int64_t k = x->n_prompt, at = 0; k < x->n; k++) {
        at = x->drawn[k] != 0 ? at : -1;
        if (at >= 0) assert_true(x->logprob[k] == -1.0f - (float)at);
        at++;
    }
    free(found);
}

/* The whole conversation as one text is the same tokens. */
static void assert_same_as_whole(const scene *s, int64_t i, const char *text) {
    const ls_episode *x = &s->episodes->list[i];
    int32_t *ids;
    int64_t n;
    ls_error err;
    assert_ok(ls_tokenizer_encode(s->tokenizer, text, (int64_t)strlen(text), false, &ids, &n, &err), err);
    assert_int_equal(n, x->n);
    assert_memory_equal(ids, x->tokens, (size_t)n * sizeof *ids);
    free(ids);
}

/* A special token is three characters of the text. */
static const char *next_token(const char *c) { return c + (c[0] == '<' && c[2] == '>' ? 3 : 1); }

static void messages_become_what_the_template_writes(void **state) {
    static const char whole[] =
        "tools:abc\n<1>user:go<2>\n<1>assistant:calc<2>\n<1>tool:12<2>\n<1>assistant:x 7<2>\n"
        "<1>tool:a<2>\n<1>user:so<2>\n<1>assistant:done<2>";
    static const char *const drawn[] = {"calc<2>", "x 7<2>", "done<2>"};
    const char *const lines[] = {CHAT, NULL}; /* of data, and of the environment's own reset, with tools */
    char marks[512] = "";
    (void)state;
    for (const char *c = whole; *c != '\0'; c = next_token(c)) strcat(marks, ".");
    for (int w = 0; w < 3; w++) {
        const char *found = strstr(whole, drawn[w]);
        int64_t token = 0;
        for (const char *c = whole; c < found; c = next_token(c)) token++;
        memset(marks + token, '^', strlen(drawn[w]) - 2);
    }
    for (int k = 0; k < 2; k++) {
        scene s;
        ls_error err;
        scene_open(&s, AS_IS, SHELL(TOOL, TWO), lines[k]);
        assert_ok(scene_run(&s, plain, &err), err);
        assert_text(&s, 0, whole, marks);
        assert_same_as_whole(&s, 0, whole);
        assert_true(s.episodes->list[0].reward == 1 && s.episodes->list[1].reward == 1);
        assert_int_equal(s.episodes->list[0].n_drawn, 5 + 4 + 5);
        scene_close(&s);
    }
}

/* Blanks around a completion are the template's to take; the tokens keep them. */
static void drawn_tokens_are_kept(void **state) {
    static const char *const words[6] = {" 5 ", "\n", "e", "b", "c", "d"};
    scene s;
    ls_error err;
    char *found;
    int64_t bytes;
    (void)state;
    scene_open(&s, "{% for m in messages %}" TURN("m.content | trim") "{% endfor %}" PROMPT, SHELL(TOOL, TOOL), CHAT);
    assert_ok(scene_run(&s, words, &err), err);
    assert_ok(ls_tokenizer_decode(s.tokenizer, s.episodes->list[0].tokens, s.episodes->list[0].n, false, &found, &bytes,
                                  &err),
              err);
    assert_string_equal(found,
                        "<1>user:go<2>\n<1>assistant: 5 <2>\n<1>tool:12<2>\n<1>assistant:\n<2>\n<1>tool:12<2>\n"
                        "<1>assistant:e<2>");
    free(found);
    scene_close(&s);
}

/* A stop text that ends the template's turns, too, is written once. */
static void stop_texts_are_not_doubled(void **state) {
    static const char *const words[6] = {"calc\n", "x\n", "e\n", "b\n", "c\n", "d\n"};
    scene s;
    ls_error err;
    char *found;
    int64_t bytes;
    (void)state;
    scene_open(&s,
               "{% for m in messages %}{{ m.role + ':' + m.content + '\\n' }}{% endfor %}assistant:", SHELL(TOOL, TWO),
               CHAT);
    s.ends = false;
    s.world.stop_text = "\n";
    assert_ok(scene_run(&s, words, &err), err);
    assert_ok(ls_tokenizer_decode(s.tokenizer, s.episodes->list[0].tokens, s.episodes->list[0].n, false, &found, &bytes,
                                  &err),
              err);
    assert_string_equal(found, "user:go\nassistant:calc\ntool:12\nassistant:x\ntool:a\nuser:so\nassistant:e\n");
    free(found);
    scene_close(&s);
}

static void refused(const char *template, const char *environment, const char *line, const char *says) {
    scene s;
    ls_error err;
    scene_open(&s, template, environment, line);
    check_failed(scene_run(&s, plain, &err), &err, says);
    if (template != NULL && line != NULL && strstr(says, "otherwise") != NULL)
        check_failed(LS_ERR_ARG, &err, "chat_template.jinja");
    scene_close(&s);
}

static void templates_that_rewrite_are_refused(void **state) {
    (void)state;
    refused(OF_ASSISTANT("m.content if loop.last else m.content[:2]"), SHELL(TOOL, TOOL), CHAT,
            "writes turn 1 otherwise when messages follow");
    refused(OF_ASSISTANT("m.content if messages | length < 5 else m.content | upper"), SHELL(TOOL, TOOL), CHAT,
            "writes turn 1 otherwise when messages follow");
    refused("{% for m in messages %}{{ loop.revindex }}" TURN("m.content") "{% endfor %}" PROMPT, SHELL(TOOL, TOOL),
            CHAT, "writes the prompt otherwise when messages follow");
    refused("{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" TURN(
                "m.content") "{% endfor %}" PROMPT,
            SHELL(TOOL, TOOL), CHAT, "no tools");
}

/* Where a template takes offence at one completion, that episode fails and no other. */
static void one_completion_may_fail(void **state) {
    static const char *const words[6] = {"a%b", "", "", "fine", "c", "d"};
    scene s;
    ls_error err;
    (void)state;
    scene_open(&s, OF_ASSISTANT("m.content.split('%')[-1]"), SHELL(TOOL, TOOL), CHAT);
    assert_ok(scene_run(&s, words, &err), err);
    assert_true(s.episodes->list[0].failed && !s.episodes->list[1].failed);
    assert_non_null(strstr(s.episodes->message, "q#0: "));
    assert_non_null(strstr(s.episodes->message, "writes turn 1 otherwise"));
    scene_close(&s);
    scene_open(&s,
               "{% for m in messages %}{% if '%' in m.content %}{{ raise_exception('no percents') }}{% endif %}" TURN(
                   "m.content") "{% endfor %}" PROMPT,
               SHELL(TOOL, TOOL), CHAT);
    assert_ok(scene_run(&s, words, &err), err);
    assert_true(s.episodes->list[0].failed && !s.episodes->list[1].failed);
    assert_non_null(strstr(s.episodes->message, "no percents"));
    scene_close(&s);
}

static void what_does_not_go_together(void **state) {
    static const char text[] = "{\"id\":\"q\",\"prompt\":\"go\"}\n";
    (void)state;
    refused(AS_IS, SHELL(TOOL, TOOL), text, "q#0: the environment answers with messages, and the problem is a text");
    refused(AS_IS, SHELL("echo \"{\\\"id\\\":$id,\\\"observation\\\":\\\"x\\\"}\"", TOOL), CHAT,
            "answers turn 2 with messages, and answered turn 1 with a text");
    refused(NULL, SHELL(TOOL, TOOL), text, "messages need a chat template");
    refused(NULL, SHELL(TOOL, TOOL), NULL, "messages need a chat template");
    refused(AS_IS, SHELL("echo \"{\\\"id\\\":$id,\\\"messages\\\":[{\\\"content\\\":\\\"x\\\"}]}\"", TOOL), CHAT,
            "messages is no list of messages that have a role");
    refused(AS_IS, SHELL("echo \"{\\\"id\\\":$id,\\\"messages\\\":[]}\"", TOOL), CHAT, "messages is no list");
    refused(AS_IS,
            SHELL("echo \"{\\\"id\\\":$id,\\\"observation\\\":\\\"x\\\",\\\"messages\\\":[{\\\"role\\\":\\\"a\\\"}]}\"",
                  TOOL),
            CHAT, "there are messages and a prompt or observation");
}

/* Whoever judges hears of calls beside the content, in the form that the template's marks name. */
static void calls_are_told(void **state) {
    static const char *const words[] = {"calc", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>"};
    char *said = NULL;
    scene s;
    ls_error err;
    (void)state;
    scene_open(&s, AS_IS "{# <tool_call> #}", SHELL(TOOL, TWO), CHAT);
    assert_ok(ls_episodes_begin(s.episodes, &s.world, LS_TASK_SPLIT_TRAIN, 0, &err), err);
    for (int k = 0; k < 2; k++) {
        ls_episode *x = &s.episodes->list[0];
        char *copy;
        assert_ok(ls_text_copy(&copy, words[k], (int64_t)strlen(words[k]), &err), err);
        x->replies[x->n_replies++] = (ls_reply){copy, (int64_t)strlen(copy)};
    }
    assert_ok(ls_dialogue_said(&said, &s.world, &s.episodes->list[0], &err), err);
    assert_string_equal(said,
                        "[{\"role\":\"assistant\",\"content\":\"calc\"},{\"role\":\"assistant\",\"content\":"
                        "\"<tool_call>{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"a\\\": 1}}</tool_call>\","
                        "\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":"
                        "{\"a\": 1}}}]}]");
    free(said);
    scene_close(&s);
}

/* Messages for which there is no room end an episode as a text does. */
static void episodes_without_room_end(void **state) {
    scene s;
    ls_error err;
    (void)state;
    scene_open(&s, AS_IS, SHELL(TOOL, TOOL), CHAT);
    ls_episodes_free(s.episodes);
    assert_ok(ls_episodes_create(&s.episodes, 1, 2, 55, 8, &err), err);
    assert_ok(scene_run(&s, plain, &err), err);
    assert_true(s.episodes->list[0].overlong && s.episodes->list[0].reward == -1);
    assert_int_equal(s.episodes->list[0].n_replies, 1);
    scene_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_become_what_the_template_writes),
        cmocka_unit_test(drawn_tokens_are_kept),
        cmocka_unit_test(stop_texts_are_not_doubled),
        cmocka_unit_test(templates_that_rewrite_are_refused),
        cmocka_unit_test(one_completion_may_fail),
        cmocka_unit_test(what_does_not_go_together),
        cmocka_unit_test(episodes_without_room_end),
        cmocka_unit_test(calls_are_told),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
