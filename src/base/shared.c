/* Files in memory, which others of the machine open as what the kernel shows of their maker. */
#define _GNU_SOURCE
#include "base/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static ls_status map_file(ls_shared_region *r, int fd, int access, const char *what, ls_error *err) {
    void *memory = mmap(NULL, (size_t)r->bytes, access, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED)
        return LS_FAIL(err, LS_ERR_NOMEM, "%s: cannot map %lld bytes: %s", what, (long long)r->bytes, strerror(errno));
    r->memory = memory;
    return LS_OK;
}

ls_status ls_shared_region_make(ls_shared_region *out, int64_t bytes, const char *what, ls_error *err) {
    *out = (ls_shared_region){.bytes = bytes, .process = (int32_t)getpid(), .number = -1};
    ls_status status = LS_OK;
    out->number = memfd_create("lockstep", MFD_CLOEXEC);
    if (out->number < 0 || ftruncate(out->number, bytes) != 0)
        status =
            LS_FAIL(err, LS_ERR_NOMEM, "%s: %lld bytes of shared memory: %s", what, (long long)bytes, strerror(errno));
    if (status == LS_OK) status = map_file(out, out->number, PROT_READ | PROT_WRITE, what, err);
    if (status != LS_OK) ls_shared_region_drop(out);
    return status;
}

ls_status ls_shared_region_map(ls_shared_region *out, int32_t process, int32_t number, int64_t bytes, ls_error *err) {
    char path[64];
    struct stat st;
    int fd;
    ls_status status = LS_OK;
    *out = (ls_shared_region){.bytes = bytes, .process = process, .number = -1};
    snprintf(path, sizeof path, "/proc/%d/fd/%d", process, number);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return LS_FAIL(err, LS_ERR_IO, "the memory of process %d cannot be opened: %s: %s", process, path,
                       strerror(errno));
    if (fstat(fd, &st) != 0 || (int64_t)st.st_size != bytes)
        status = LS_FAIL(err, LS_ERR_IO, "the memory of process %d: %s is not its %lld bytes", process, path,
                         (long long)bytes);
    if (status == LS_OK) status = map_file(out, fd, PROT_READ, "shared memory", err);
    (void)close(fd);
    return status;
}

void ls_shared_region_drop(ls_shared_region *r) {
    if (r->memory != NULL) LS_ASSERT(munmap(r->memory, (size_t)r->bytes) == 0, "%lld bytes", (long long)r->bytes);
    if (r->number >= 0) (void)close(r->number);
    *r = (ls_shared_region){.number = -1};
}

ls_status ls_machine_name(char out[LS_MACHINE_BYTES], ls_error *err) {
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    FILE *file = fopen(path, "r");
    memset(out, 0, LS_MACHINE_BYTES);
    if (file == NULL) return LS_FAIL(err, LS_ERR_IO, "%s: %s", path, strerror(errno));
    const size_t n = fread(out, 1, LS_MACHINE_BYTES - 1, file);
    (void)fclose(file);
    return n > 0 ? LS_OK : LS_FAIL(err, LS_ERR_IO, "%s: empty", path);
}
