// Functions that V8 compiles: `work` calls `fib`, again and again. Prints `ready PID`; ends when standard input closes.

function fib(number) {
    return number < 2 ? number : fib(number - 1) + fib(number - 2);
}

function work() {
    const end = Date.now() + 20;
    while (Date.now() < end)
        fib(15);
    setTimeout(work, 1);
}

process.stdin.on("end", () => process.exit(0)).resume();
work();
console.log("ready", process.pid);
