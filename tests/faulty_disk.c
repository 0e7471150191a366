// Runs a program in which one system call on files fails: faulty FOLDER K HOW REPORT PROGRAM [ARGUMENT]...
//
// Counts the calls that change files under FOLDER: to open one for writing, to write, truncate, flush, rename, link or
// remove it, and to make or remove a folder. Call number K, from 1, does not happen:
//   HOW = an error number: it fails with this error;
//   HOW = an error number and "+": so does every later call that needs space, but no other one;
//   HOW = "kill": the program is killed at once.
// K = 0 only counts. REPORT gets one line per call: its number, name and path, and "failed" for those that did not happen.
// Ends with the program's exit code, or 128 + the signal that ended it.
//
// System calls are traced and not intercepted in a preloaded library, because some Rust crates make them without libc.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

// How a call names its file: by a descriptor, by a path, or by the descriptor of a folder and a path.
enum { BY_FD, BY_PATH, BY_FOLDER };

static const struct call {
    int number, names, needs_space;
    const char* name;
} CALLS[] = {
    {SYS_write, BY_FD, 1, "write"},
    {SYS_pwrite64, BY_FD, 1, "pwrite"},
    {SYS_writev, BY_FD, 1, "writev"},
    {SYS_pwritev, BY_FD, 1, "pwritev"},
    {SYS_ftruncate, BY_FD, 1, "ftruncate"},
    {SYS_fallocate, BY_FD, 1, "fallocate"},
    {SYS_sendfile, BY_FD, 1, "sendfile"},
    {SYS_copy_file_range, BY_FD, 1, "copy_file_range"},
    {SYS_fsync, BY_FD, 0, "fsync"},
    {SYS_fdatasync, BY_FD, 0, "fdatasync"},
    {SYS_fchmod, BY_FD, 0, "fchmod"},
    {SYS_open, BY_PATH, 1, "open"},
    {SYS_openat, BY_FOLDER, 1, "openat"},
    {SYS_creat, BY_PATH, 1, "creat"},
    {SYS_mkdir, BY_PATH, 1, "mkdir"},
    {SYS_mkdirat, BY_FOLDER, 1, "mkdirat"},
    {SYS_link, BY_PATH, 1, "link"},
    {SYS_linkat, BY_FOLDER, 1, "linkat"},
    {SYS_rename, BY_PATH, 0, "rename"},
    {SYS_renameat, BY_FOLDER, 0, "renameat"},
    {SYS_renameat2, BY_FOLDER, 0, "renameat2"},
    {SYS_unlink, BY_PATH, 0, "unlink"},
    {SYS_unlinkat, BY_FOLDER, 0, "unlinkat"},
    {SYS_rmdir, BY_PATH, 0, "rmdir"},
};
enum { COUNT = sizeof CALLS / sizeof *CALLS };

static void die(const char* what) {
    perror(what);
    exit(99);
}

// Makes the kernel stop this process and its children at each of the calls.
static void filter_calls(void) {
    struct sock_filter code[COUNT + 5];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
    code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, COUNT + 1);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < COUNT; i++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i].number, COUNT - i, 0);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) die("seccomp");
}

// Reads the link /proc/PID/WHAT.
static void read_link(pid_t pid, const char* what, char* path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/%d/%s", pid, what);
    ssize_t n = readlink(link, path, PATH_MAX - 1);
    path[n < 0 ? 0 : n] = 0;
}

static void read_fd(pid_t pid, int fd, char* path) {
    char what[32];
    snprintf(what, sizeof what, "fd/%d", fd);
    read_link(pid, fd == AT_FDCWD ? "cwd" : what, path);
}

// Reads a path in the memory of the process, and adds it to the folder that it starts from.
static void read_path(pid_t pid, int folder, unsigned long long address, char* path) {
    char name[PATH_MAX] = "";
    for (size_t n = 0; n < sizeof name - 1; n++) {
        struct iovec here = {name + n, 1}, there = {(void*)(address + n), 1};
        if (process_vm_readv(pid, &here, 1, &there, 1, 0) != 1 || !name[n]) break;
    }
    path[0] = 0;
    if (name[0] != '/') {
        read_fd(pid, folder, path);
        strcat(path, "/");
    }
    strncat(path, name, PATH_MAX - 1);
}

static const struct call* call_of(long long number) {
    for (int i = 0; i < COUNT; i++) {
        if (CALLS[i].number == number) return &CALLS[i];
    }
    return NULL;
}

// Returns whether a call changes something under the folder, and its path.
static int changes(pid_t pid, const struct call* call, const struct user_regs_struct* r, const char* folder, char* path) {
    unsigned long long flags = call->number == SYS_open ? r->rsi : r->rdx;
    int opens = call->number == SYS_open || call->number == SYS_openat;
    if (opens && !(flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))) return 0;
    if (call->names == BY_FD) read_fd(pid, call->number == SYS_copy_file_range ? (int)r->rdx : (int)r->rdi, path);
    if (call->names == BY_PATH) read_path(pid, AT_FDCWD, r->rdi, path);
    if (call->names == BY_FOLDER) read_path(pid, (int)r->rdi, r->rsi, path);
    size_t n = strlen(folder);
    return !strncmp(path, folder, n) && (path[n] == '/' || !path[n]);
}

int main(int count, char** words) {
    if (count < 6) return fprintf(stderr, "faulty FOLDER K HOW REPORT PROGRAM [ARGUMENT]...\n"), 99;
    const char *folder = words[1], *how = words[3];
    long k = atol(words[2]), made = 0;
    int error = atoi(how), kills = !strcmp(how, "kill"), goes_on = strchr(how, '+') != NULL;
    FILE* report = fopen(words[4], "w");
    if (!report) die(words[4]);
    int gate[2];
    if (pipe2(gate, O_CLOEXEC)) die("pipe");
    pid_t child = fork();
    if (child == 0) {
        char go;
        // The parent closes its end when it traces this process.
        close(gate[1]);
        while (read(gate[0], &go, 1) > 0) {}
        filter_calls();
        execv(words[5], words + 5);
        _exit(98);
    }
    long options = PTRACE_O_TRACECLONE | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACESECCOMP | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, child, 0, options)) die("ptrace");
    close(gate[0]);
    close(gate[1]);
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, __WALL);
        if (pid < 0) die("waitpid");
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (pid != child) continue;
            fclose(report);
            return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
        int event = status >> 16;
        // A signal of the program is passed on. Events and new threads go on.
        int number = event ? 0 : WSTOPSIG(status);
        if (event == PTRACE_EVENT_SECCOMP) {
            struct user_regs_struct registers;
            char path[2 * PATH_MAX] = "";
            if (ptrace(PTRACE_GETREGS, pid, 0, &registers)) continue;
            const struct call* call = call_of((long long)registers.orig_rax);
            if (call && changes(pid, call, &registers, folder, path)) {
                made++;
                int fails = k > 0 && (made == k || (goes_on && made > k && call->needs_space));
                fprintf(report, "%ld %s %s%s\n", made, call->name, path, fails ? " failed" : "");
                fflush(report);
                if (fails && kills) {
                    kill(child, SIGKILL);
                    continue;
                }
                if (fails) {
                    // No such call: the kernel leaves the result as it is set here.
                    registers.orig_rax = (unsigned long long)-1;
                    registers.rax = (unsigned long long)-error;
                    ptrace(PTRACE_SETREGS, pid, 0, &registers);
                }
            }
        }
        ptrace(PTRACE_CONT, pid, 0, number);
    }
}
