/* A program reserves the addresses of a pool, backs with memory the two places that matter, the right one and the
 * one to which the wrapped index points, and lets a kernel write by the expression in its 32 bits. */
#include "audit/reproduce.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"

/* The expression at the largest values of all but the lever, in 128 bits. */
static ls_wide exact_at(const ls_audit_finding *f, ls_wide lever) {
    ls_wide sum = 0;
    for (int32_t i = 0; i < f->n_terms; i++) {
        ls_wide product = f->terms[i].factor;
        for (int32_t k = 0; k < f->terms[i].n; k++) {
            const int32_t s = f->terms[i].symbols[k];
            product *= s == f->lever_symbol ? lever : f->terms[i].factor > 0 ? f->symbols[s].high : f->symbols[s].low;
        }
        sum += product;
    }
    return sum;
}

/* Why no program is made of a finding; NULL where one is. */
static const char *refusal(const ls_audit_finding *f) {
    const ls_wide limit = f->is_signed ? 0x7FFFFFFF : 0xFFFFFFFFLL;
    if (f->bits != 32) return "its width is not 32 bits";
    if (f->n_terms == 0) return "its expression has too many parts";
    if (f->lever_symbol < 0) return "no value alone is its lever";
    for (int32_t i = 0; i < f->n_symbols; i++)
        if (f->symbols[i].high > INT64_C(1) << 40 || f->symbols[i].low < -(INT64_C(1) << 40))
            return "a range passes 40 bits";
    if (exact_at(f, f->first) <= limit || exact_at(f, f->first - 1) > limit)
        return "its values bound each other, so that they are not largest at once";
    if (exact_at(f, f->lever_high) > INT64_C(1) << 44) return "the addresses would pass 44 bits";
    return NULL;
}

static void write_sum(FILE *file, const ls_audit_finding *f, bool narrow) {
    const char *type = narrow ? "(unsigned int)" : "(long long)", *suffix = narrow ? "U" : "LL";
    for (int32_t i = 0; i < f->n_terms; i++) {
        const ls_audit_term *t = &f->terms[i];
        fprintf(file, "%s%s%lld%s", i > 0 ? " + " : "", type, (long long)t->factor, narrow ? "LL" : suffix);
        for (int32_t k = 0; k < t->n; k++) {
            const int32_t s = t->symbols[k];
            if (s == f->lever_symbol)
                fprintf(file, " * %slever", type);
            else
                fprintf(file, " * %s%lldLL", type, (long long)(t->factor > 0 ? f->symbols[s].high : f->symbols[s].low));
        }
    }
}

static const char program_kernels[] =
    "\n"
    "__global__ void write_at(unsigned char *pool, long long lever, bool wide) {\n"
    "    const long long index = wide ? exact(lever) : narrow(lever);\n"
    "    pool[index * SCALE] = TAG;\n"
    "}\n"
    "\n"
    "__global__ void count_bad(unsigned long long *n, unsigned long long *first) {\n"
    "    const long long step = (long long)gridDim.x * blockDim.x;\n"
    "    unsigned long long mine = 0, lowest = ~0ULL;\n"
    "    for (long long v = LOW + (long long)blockIdx.x * blockDim.x + threadIdx.x; v <= HIGH; v += step)\n"
    "        if (exact(v) != narrow(v)) {\n"
    "            mine++;\n"
    "            if ((unsigned long long)v < lowest) lowest = (unsigned long long)v;\n"
    "        }\n"
    "    if (mine > 0) atomicAdd(n, mine);\n"
    "    if (mine > 0) atomicMin(first, lowest);\n"
    "}\n"
    "\n";

/* The rest: memory at the two places, the write by either index, the count. */
static const char program_main[] =
    "#define RUN(call)                                                                                    \\\n"
    "    do {                                                                                             \\\n"
    "        const int code = (int)(call);                                                                \\\n"
    "        if (code != 0) return fprintf(stderr, \"%s: error %d\\n\", #call, code), 1;                  \\\n"
    "    } while (0)\n"
    "#define FIND(name) decltype(&name) p_##name = (decltype(&name))dlsym(driver, #name)\n"
    "\n"
    "int main() {\n"
    "    int devices = 0;\n"
    "    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return puts(\"skipped: no GPU\"), 77;\n"
    "    RUN(cudaSetDevice(0));\n"
    "    RUN(cudaFree(0));\n"
    "    void *driver = dlopen(\"libcuda.so.1\", RTLD_NOW);\n"
    "    if (driver == NULL) return fprintf(stderr, \"no libcuda.so.1\\n\"), 1;\n"
    "    FIND(cuMemGetAllocationGranularity);\n"
    "    FIND(cuMemAddressReserve);\n"
    "    FIND(cuMemCreate);\n"
    "    FIND(cuMemMap);\n"
    "    FIND(cuMemSetAccess);\n"
    "    if (!p_cuMemGetAllocationGranularity || !p_cuMemAddressReserve || !p_cuMemCreate || !p_cuMemMap || "
    "!p_cuMemSetAccess)\n"
    "        return fprintf(stderr, \"the driver has no virtual memory management\\n\"), 1;\n"
    "    CUmemAllocationProp kind = {};\n"
    "    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;\n"
    "    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;\n"
    "    size_t piece = 0;\n"
    "    RUN(p_cuMemGetAllocationGranularity(&piece, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM));\n"
    "    const long long right = exact(FIRST) * SCALE, wrong = narrow(FIRST) * SCALE, grain = (long long)piece;\n"
    "    const long long lowest = wrong < 0 ? wrong : 0, below = (-lowest + grain - 1) / grain * grain;\n"
    "    const long long bytes = below + (right / grain + 2) * grain;\n"
    "    CUdeviceptr pool = 0;\n"
    "    RUN(p_cuMemAddressReserve(&pool, (size_t)bytes, 0, 0, 0));\n"
    "    unsigned char *origin = (unsigned char *)pool + below;\n"
    "    const long long places[2] = {(below + right) / grain, (below + wrong) / grain};\n"
    "    for (int i = 0; i < (places[0] == places[1] ? 1 : 2); i++) {\n"
    "        CUmemGenericAllocationHandle memory;\n"
    "        CUmemAccessDesc access = {};\n"
    "        access.location = kind.location;\n"
    "        access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;\n"
    "        RUN(p_cuMemCreate(&memory, piece, &kind, 0));\n"
    "        RUN(p_cuMemMap(pool + (CUdeviceptr)(places[i] * grain), piece, 0, memory, 0));\n"
    "        RUN(p_cuMemSetAccess(pool + (CUdeviceptr)(places[i] * grain), piece, &access, 1));\n"
    "        RUN(cudaMemset((void *)(pool + (CUdeviceptr)(places[i] * grain)), 0, piece));\n"
    "    }\n"
    "    unsigned char seen[3] = {0, 0, 0};\n"
    "    write_at<<<1, 1>>>(origin, FIRST, false);\n"
    "    RUN(cudaDeviceSynchronize());\n"
    "    RUN(cudaMemcpy(&seen[0], origin + right, 1, cudaMemcpyDeviceToHost));\n"
    "    RUN(cudaMemcpy(&seen[1], origin + wrong, 1, cudaMemcpyDeviceToHost));\n"
    "    write_at<<<1, 1>>>(origin, FIRST, true);\n"
    "    RUN(cudaDeviceSynchronize());\n"
    "    RUN(cudaMemcpy(&seen[2], origin + right, 1, cudaMemcpyDeviceToHost));\n"
    "    unsigned long long *counts, found[2] = {0, ~0ULL};\n"
    "    RUN(cudaMalloc(&counts, sizeof found));\n"
    "    RUN(cudaMemcpy(counts, found, sizeof found, cudaMemcpyHostToDevice));\n"
    "    count_bad<<<4096, 256>>>(counts, counts + 1);\n"
    "    RUN(cudaMemcpy(found, counts, sizeof found, cudaMemcpyDeviceToHost));\n"
    "    printf(\"predicted: first bad %lld, element %lld lands on %lld; %lld of %lld values are bad\\n\", FIRST,\n"
    "           exact(FIRST), narrow(FIRST), HIGH - FIRST + 1, HIGH - LOW + 1);\n"
    "    printf(\"seen:      first bad %llu; right place %s, wrong place %s, wide index %s; %llu bad; %lld MiB backed "
    "of %lld\\n\",\n"
    "           found[1], seen[0] == TAG ? \"written\" : \"untouched\", seen[1] == TAG ? \"written\" : \"untouched\",\n"
    "           seen[2] == TAG ? \"written\" : \"untouched\", found[0], (places[0] == places[1] ? 1 : 2) * grain >> "
    "20,\n"
    "           bytes >> 20);\n"
    "    const bool holds = seen[0] == 0 && seen[1] == TAG && seen[2] == TAG && found[1] == (unsigned long long)FIRST "
    "&&\n"
    "                       found[0] == (unsigned long long)(HIGH - FIRST + 1);\n"
    "    puts(holds ? \"as predicted\" : \"NOT as predicted\");\n"
    "    return holds ? 0 : 1;\n"
    "}\n";

/* A name goes into a comment: nothing in it may end that. */
static void write_name(FILE *file, const char *text) {
    for (; *text != '\0'; text++) fputc(text[0] == '*' && text[1] == '/' ? '-' : *text == '\\' ? '?' : *text, file);
}

static void write_program(FILE *file, const ls_audit_finding *f) {
    fprintf(file, "/* Shows a finding of lockstep audit on a GPU: nvcc FILE && ./a.out\n * kernel: ");
    write_name(file, f->kernel);
    fprintf(file, "\n * expression: ");
    write_name(file, f->expression);
    fprintf(file, "\n * in %s; lever: ", f->is_signed ? "32 bits, signed" : "32 bits, unsigned");
    write_name(file, f->lever);
    fprintf(file, "\n * exit 0: the wrong place is written, and as many values are bad as predicted. */\n");
    fprintf(file, "#include <cuda.h>\n#include <cuda_runtime.h>\n#include <dlfcn.h>\n#include <stdio.h>\n\n");
    fprintf(file, "static const long long FIRST = %lldLL, LOW = %lldLL, HIGH = %lldLL, SCALE = %lldLL;\n",
            (long long)f->first, (long long)f->lever_low, (long long)f->lever_high,
            (long long)(f->scale > 0 ? f->scale : 1));
    fprintf(file,
            "static const unsigned char TAG = 0xA5;\n\n__host__ __device__ static long long exact(long long lever) { "
            "return ");
    write_sum(file, f, false);
    fprintf(file, "; }\n\n__host__ __device__ static long long narrow(long long lever) { return (long long)(%s)(",
            f->is_signed ? "int" : "unsigned int");
    write_sum(file, f, true);
    fprintf(file, "); }\n%s%s", program_kernels, program_main);
}

ls_status ls_audit_reproduce(const ls_audit *audit, const char *folder, FILE *notes, ls_error *err) {
    if (mkdir(folder, 0777) != 0 && errno != EEXIST)
        return LS_FAIL(err, LS_ERR_IO, "%s: cannot be made: %s", folder, strerror(errno));
    for (int64_t i = 0; i < audit->n_findings; i++) {
        const ls_audit_finding *f = &audit->findings[i];
        const char *why = refusal(f);
        char path[4096];
        ls_output *output;
        if (why != NULL) {
            fprintf(notes, "finding %lld: no program: %s\n", (long long)i + 1, why);
            continue;
        }
        if (snprintf(path, sizeof path, "%s/finding_%lld.cu", folder, (long long)i + 1) >= (int)sizeof path)
            return LS_FAIL(err, LS_ERR_ARG, "%s: the name is too long", folder);
        LS_TRY(ls_output_open(&output, path, err));
        write_program(ls_output_stream(output), f);
        LS_TRY(ls_output_commit(output, err));
    }
    return LS_OK;
}
