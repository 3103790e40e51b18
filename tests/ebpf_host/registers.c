// SPDX-License-Identifier: GPL-2.0-only
/* Registers of stopped threads: tid, then struct pt_regs in words, one line each. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>

int main(int count, char **tids)
{
    for (int i = 1; i < count; i++) {
        struct user_regs_struct registers; /* begins as struct pt_regs does, up to ss */
        int tid = atoi(tids[i]), status;
        if (ptrace(PTRACE_SEIZE, tid, 0, 0) || ptrace(PTRACE_INTERRUPT, tid, 0, 0))
            return 1;
        if (waitpid(tid, &status, __WALL) != tid || ptrace(PTRACE_GETREGS, tid, 0, &registers))
            return 2;
        printf("%d", tid);
        for (int word = 0; word < 21; word++)
            printf(" %llu", ((unsigned long long *)&registers)[word]);
        puts("");
        ptrace(PTRACE_DETACH, tid, 0, 0);
    }
    return 0;
}
