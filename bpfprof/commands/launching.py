"""What is said and done as a launched command goes its way: what it started, or it itself, may go on."""

from __future__ import annotations

from dataclasses import field

from bpfprof.capture.launched import LaunchedCommand
from bpfprof.capture.process import Process, command_name
from bpfprof.capture.processes import Processes
from bpfprof.capture.stop import StopRequest
from bpfprof.commands.outputs import tell
from bpfprof.dataclass import dataclass

_NAMED = 3


@dataclass
class Launch:
    """A launched command whose recording `stop` ends; kills: whether it ends with that."""

    command: LaunchedCommand
    stop: StopRequest
    kills: bool
    _others: list[Process] = field(default_factory=list)  # which it started, and which go on
    _is_told: bool = False

    @classmethod
    def start(cls, command: tuple[str, ...], stop: StopRequest, kills: bool) -> Launch:
        """From here on Ctrl-C is for the command. Raises LaunchError."""
        stop.leave_ctrl_c()
        return cls(LaunchedCommand.start(command), stop, kills)

    @property
    def name(self) -> str:
        """Of the command, with its pid."""
        return f"{command_name(self.command.command)} ({self.command.pid})"

    def follow(self, processes: Processes) -> None:
        """While it is recorded: says that it has ended, and what goes on. From then on Ctrl-C is for bpfprof."""
        if self._is_told or not self.command.has_ended():
            return
        self.stop.take_ctrl_c()
        self._look_at_others(processes)  # none as long as their births are on the way
        self._is_told = bool(self._others)
        if self._others and not self.stop.requested:
            tell(f"{self.name} has ended, and {self._what_goes_on()}; Ctrl-C ends the recording")

    def recorded(self, processes: Processes) -> None:
        """The recording is over."""
        self._look_at_others(processes)
        if self.kills:
            self.command.end([process.pid for process in self._others], self.stop)

    def left_alone(self) -> None:
        """Something went wrong, of which the command may know nothing."""
        if self.command.is_released and not self.command.has_ended():
            tell(f"bpfprof: {self.name} goes on without being recorded")

    def wait(self) -> int:
        """The exit status of the command, after its end; what it started is not waited for."""
        if not self.kills and self.command.has_ended() and self._others:
            tell(f"{self._what_goes_on()}, without being recorded")
        if not self.stop.requested and not self.command.has_ended():
            tell(f"{self.name} goes on, and bpfprof ends with it; --kill ends it at once")
        status = self.command.wait(self.stop)
        if self.command.ending:
            tell(f"bpfprof: {self.command.ending} ended {self.name}")
        return status

    def _look_at_others(self, processes: Processes) -> None:
        self._others = [process for process in processes.living() if process.pid != self.command.pid]

    def _what_goes_on(self) -> str:
        named = [f"{process.name} ({process.pid})" for process in self._others[:_NAMED]]
        more = len(self._others) - len(named)
        listed = ", ".join(named) + (f" and {more} more" if more else "")
        return f"{listed} {'goes' if len(self._others) == 1 else 'go'} on"
