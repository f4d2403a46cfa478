/* The tables of first bytes and of names. */
#include "base/other_forms.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"

enum { PATH_BYTES = 4096 };

#define BY_TRANSFORMERS "python3 -c \"from transformers import AutoModelForCausalLM as M; "
#define UNPICKLE                                                                                               \
    "holds pickled tensors, which are programs and not run here; convert it: python3 -c \"import sys, torch, " \
    "safetensors.torch as s; s.save_file(torch.load(sys.argv[1], weights_only=True), sys.argv[2])\" OLD "      \
    "model.safetensors"
#define PAGE "is an HTML page, as a failed download or a login leaves behind: download the file again"

#define AS_LINES "; load it in Python and write its fields as JSON Lines"
#define PARQUET_LINES                                                                                                 \
    "is Parquet; convert it: python3 -c \"import sys, pandas; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], " \
    "orient='records', lines=True)\" OLD NEW.jsonl"
#define LFS "is Git LFS's pointer to the file, not the file: `git lfs pull` brings it"
#define PICKLE_LINES "is a pickle, a program that is not run here" AS_LINES
#define UTF16 "is UTF-16: `iconv -f UTF-16 -t UTF-8 OLD > NEW` converts it"
#define ZSTD "is compressed by Zstandard: unpack it with `unzstd`"

/* is: where a model or JSON is wanted; lines: where lines of text are. NULL: it is not told there. */
static const struct {
    const char *begin;
    int64_t bytes;
    bool any_case;
    const char *is, *lines;
} kinds[] = {
    {"version https://git-lfs", 23, false, LFS, LFS},
    {"PK\003\004", 4, false, "is a zip archive, torch.save's; it " UNPICKLE,
     "is a zip archive, as torch.save and numpy.savez write them" AS_LINES},
    {"\x80\x02", 2, false, UNPICKLE, PICKLE_LINES},
    {"\x80\x03", 2, false, UNPICKLE, PICKLE_LINES},
    {"\x80\x04", 2, false, UNPICKLE, PICKLE_LINES},
    {"\x80\x05", 2, false, UNPICKLE, PICKLE_LINES},
    {"GGUF", 4, false,
     "is GGUF, llama.cpp's format; where its weights are not quantised: " BY_TRANSFORMERS
     "M.from_pretrained('DIRECTORY', gguf_file='FILE').save_pretrained('OUT')\"",
     NULL},
    {"PAR1", 4, false, PARQUET_LINES, PARQUET_LINES},
    {"ARROW1", 6, false, NULL,
     "is an Arrow file; in Python: pyarrow.feather.read_feather(FILE).to_json(OUT, orient='records', lines=True)"},
    {"<!doctype", 9, true, PAGE, NULL},
    {"<html", 5, true, PAGE, NULL},
    {"<?xml", 5, true, "is XML, as a failed download leaves behind: download the file again", NULL},
    {"Entry not found", 15, false, "is a server's answer, not the file: it has no such file", NULL},
    {"Repository not found", 20, false, "is a server's answer, not the file: it has no such repository", NULL},
    {"Access to model", 15, false, "is a server's answer, not the file: the model asks for a login", NULL},
    {"Invalid username", 16, false, "is a server's answer, not the file: it asks for a login", NULL},
    {"\x1f\x8b", 2, false, "is compressed by gzip: unpack it with `gunzip`", NULL},
    {"\x28\xb5\x2f\xfd", 4, false, ZSTD, ZSTD},
    {"\xfd"
     "7zXZ",
     5, false, NULL, "is compressed by xz: unpack it with `unxz`"},
    {"BZh", 3, false, NULL, "is compressed by bzip2: unpack it with `bunzip2`"},
    {"\x89HDF\r\n", 6, false, "is HDF5, Keras's format; safetensors are read", NULL},
    {"\x93NUMPY", 6, false, "is an array of numpy's", "is an array of numpy's" AS_LINES},
    {"\xef\xbb\xbf", 3, false, "begins with a byte order mark: `sed -i '1s/^\\xef\\xbb\\xbf//' FILE` takes it away",
     NULL},
    {"\xff\xfe", 2, false, UTF16, UTF16},
    {"\xfe\xff", 2, false, UTF16, UTF16},
};

/* What the first bytes tell where a model is wanted, or lines are. */
static const char *form_of(const char *text, int64_t n_bytes, bool lines) {
    int64_t blank = 0;
    while (blank < n_bytes && strchr(" \t\r\n", text[blank]) != NULL && text[blank] != '\0') blank++;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const int64_t at = kinds[i].any_case ? blank : 0;
        const char *says = lines ? kinds[i].lines : kinds[i].is;
        if (says == NULL || n_bytes - at < kinds[i].bytes) continue;
        if (kinds[i].any_case ? strncasecmp(text + at, kinds[i].begin, (size_t)kinds[i].bytes) == 0
                              : memcmp(text, kinds[i].begin, (size_t)kinds[i].bytes) == 0)
            return says;
    }
    return NULL;
}

const char *ls_foreign_bytes(const void *bytes, int64_t n_bytes) { return form_of(bytes, n_bytes, false); }
const char *ls_foreign_lines(const void *bytes, int64_t n_bytes) { return form_of(bytes, n_bytes, true); }

const char *ls_foreign_file(const char *path) {
    char bytes[LS_FOREIGN_BYTES];
    ls_file_id id;
    int64_t n;
    if (ls_file_identify(&id, path, NULL) != LS_OK) return NULL;
    n = id.bytes < LS_FOREIGN_BYTES ? id.bytes : LS_FOREIGN_BYTES;
    return ls_file_read_at(bytes, path, 0, n, NULL) == LS_OK ? ls_foreign_bytes(bytes, n) : NULL;
}

/* ---- directories ---- */

/* What a name in the directory tells: its beginning or its end. */
typedef struct sign {
    const char *begin, *end;
    bool wants[3]; /* by ls_foreign_want */
    const char *says;
} sign;

#define RUN_SIGN "checkpoints"
#define RESAVE BY_TRANSFORMERS "M.from_pretrained('DIRECTORY').save_pretrained('OUT')\""

/* The first sign that is there counts. */
static const sign signs[] = {
    {RUN_SIGN, "", {true, true, true}, "a run's checkpoints, which are models; the newest is"},
    {"snapshots", "", {true, true, true}, "a folder of the Hub's cache: the model is the directory below snapshots/"},
    {"models--", "", {true, true, true}, "the Hub's cache: a model is a directory NAME/snapshots/HASH below it"},
    {"", ".gguf", {true, true, true}, "GGUF, llama.cpp's format; safetensors are read"},
    {"pytorch_model", ".bin", {false, true, false}, "pickled weights alone; convert them: " RESAVE},
    {"pytorch_model.bin.index", ".json", {false, true, false}, "pickled weights alone; convert them: " RESAVE},
    {"", ".safetensors.index.json", {false, true, false}, "an index of another name than model.safetensors.index.json"},
    {"model-0",
     ".safetensors",
     {false, true, false},
     "shards without model.safetensors.index.json: bring that file, too"},
    {"", ".safetensors", {false, true, false}, "safetensors of another name; `mv` them to model.safetensors"},
    {"consolidated", ".pth", {true, true, false}, "pickled weights alone, in the layout of their authors"},
    {"", ".pth", {false, true, false}, "pickled weights alone; safetensors are read"},
    {"", ".pt", {false, true, false}, "pickled weights alone; safetensors are read"},
    {"",
     ".distcp",
     {true, true, false},
     "torch's distributed checkpoint; `python3 -m torch.distributed.checkpoint."
     "format_utils dcp_to_torch DIRECTORY FILE` joins it, safetensors are read"},
    {"global_step", "", {true, true, false}, "DeepSpeed's checkpoint: its zero_to_fp32.py makes weights of it"},
    {"tf_model", ".h5", {false, true, false}, "weights of TensorFlow alone; safetensors are read"},
    {"flax_model", ".msgpack", {false, true, false}, "weights of Flax alone; safetensors are read"},
    {"tokenizer",
     ".model",
     {false, false, true},
     "tokenizer.model alone; convert it: python3 -c \"from transformers import AutoTokenizer as T; "
     "T.from_pretrained('DIRECTORY').save_pretrained('DIRECTORY')\""},
    {"vocab",
     ".json",
     {false, false, true},
     "vocab.json of the older form; convert it: python3 -c \"from transformers import AutoTokenizer as T; "
     "T.from_pretrained('DIRECTORY').save_pretrained('DIRECTORY')\""},
};
enum { N_SIGNS = sizeof signs / sizeof signs[0] };

static bool fits_sign(const sign *s, const char *name) {
    const size_t n = strlen(name), begin = strlen(s->begin), end = strlen(s->end);
    return n >= begin + end && strncmp(name, s->begin, begin) == 0 && strcmp(name + n - end, s->end) == 0;
}

/* A run's newest checkpoint by its name, "" without one. */
static void find_newest(char out[280], const char *run) {
    char path[4096];
    const struct dirent *entry;
    DIR *directory;
    out[0] = '\0';
    if (snprintf(path, sizeof path, "%s/" RUN_SIGN, run) >= (int)sizeof path) return;
    if ((directory = opendir(path)) == NULL) return;
    while ((entry = readdir(directory)) != NULL)
        if (strncmp(entry->d_name, "step-", 5) == 0 && strcmp(entry->d_name, out) > 0)
            snprintf(out, 280, "%s", entry->d_name);
    closedir(directory);
}

ls_status ls_foreign_directory(const char *path, ls_foreign_want want, ls_error *err) {
    static const char *const wanted[] = {"config.json", "model.safetensors or model.safetensors.index.json",
                                         "tokenizer.json"};
    DIR *directory = opendir(path);
    const struct dirent *entry;
    size_t best = N_SIGNS;
    if (directory == NULL) return LS_OK;
    while ((entry = readdir(directory)) != NULL)
        for (size_t i = 0; i < best; i++)
            if (signs[i].wants[want] && fits_sign(&signs[i], entry->d_name)) best = i;
    closedir(directory);
    if (best == N_SIGNS) return LS_OK;
    if (strcmp(signs[best].begin, RUN_SIGN) == 0) {
        char newest[280];
        find_newest(newest, path);
        return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: holds no %s, but %s %s/" RUN_SIGN "/%s", path, wanted[want],
                       signs[best].says, path, newest);
    }
    return LS_FAIL(err, LS_ERR_UNSUPPORTED, "%s: holds no %s, but %s", path, wanted[want], signs[best].says);
}
