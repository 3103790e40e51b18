/* A library: run() goes on for ever as a thread whose interpreter's structures are what its caller has made up. */
#include <stdint.h>
#include <unistd.h>

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* `slot` is where the interpreter keeps the innermost frame. In each turn so many of `words` in `block` become one of the
 * `choices`, the slot too; without changes it has the first choice for good. */
void run(volatile uint64_t *slot, volatile uint64_t *block, uint64_t words, const uint64_t *choices, uint64_t count,
         uint64_t changes, uint64_t seed)
{
    volatile uint64_t burnt = 0;
    uint64_t number;

    *slot = choices[0];
    for (;;) {
        for (number = 0; number < changes; number++)
            block[next(&seed) % words] = choices[next(&seed) % count];
        if (changes)
            *slot = choices[next(&seed) % count];
        for (number = 0; number < 300 * 1000; number++)
            burnt += number;
        usleep(1000);
    }
}
