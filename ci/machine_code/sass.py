"""Reads disassembled machine code: the instructions of each kernel, and its loops."""

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass, field

LINE = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?P<guard>@!?\w+\s+)?(?P<name>[A-Z][\w.]*)(?P<operands>[^;]*);")
LABEL = re.compile(r"^(\.L_\w+):")
TARGET = re.compile(r"`\((\.L_\w+)\)")
REGISTER = re.compile(r"\b(U?R\d+)(\.64)?")


@dataclass
class Instruction:
    guard: str  # its predicate, or nothing
    name: str  # with modifiers, such as LDG.E.128
    operands: list

    @property
    def operation(self):
        return self.name.split(".")[0]

    @property
    def is_conditional(self):
        """Whether the next instruction may follow a branch. The condition can be its predicate or an operand."""
        return bool(self.guard) or len(self.operands) > 1

    @property
    def width_bits(self):
        """The bits that a load or a store moves per thread."""
        for part in self.name.split(".")[1:]:
            if re.fullmatch(r"[US]?(8|16|64|128|256)", part):
                return int(part.lstrip("US"))
        return 32

    @property
    def writes(self):
        """The registers that it writes."""
        if self.operation in ("STG", "STS", "ST", "STL", "RED", "BRA", "BSSY") or not self.operands:
            return set()
        first = re.fullmatch(r"(U?R)(\d+)(\.64)?", self.operands[0])
        if not first:
            return set()
        pair = self.operation == "CS2R" or re.search(r"\.(64|WIDE)\b", self.name)
        count = self.width_bits // 32 if self.operation in ("LDG", "LDS", "LDC") else 2 if pair else 1
        return {f"{first[1]}{int(first[2]) + i}" for i in range(max(count, 1))}

    @property
    def reads(self):
        """The registers that it reads."""
        operands = self.operands[1:] if self.writes else self.operands
        found = set()
        for name, wide in REGISTER.findall(" ".join(operands)):
            kind, number = re.fullmatch(r"(U?R)(\d+)", name).groups()
            found |= {f"{kind}{int(number) + i}" for i in range(2 if wide else 1)}
        return found


@dataclass
class Kernel:
    name: str
    code: list = field(default_factory=list)  # instructions in the order of their addresses
    labels: dict = field(default_factory=dict)  # the position of the first instruction behind each label

    def count(self, operation):
        return sum(instruction.operation == operation for instruction in self.code)

    def loops(self):
        """Returns the loops, each as the ascending positions of its instructions, inner ones before those around them."""
        before = [[] for _ in self.code]
        for position, after in enumerate(self.successors()):
            for next_one in after:
                before[next_one].append(position)
        loops = {}
        for latch, after in enumerate(self.successors()):
            for header in after:
                if header <= latch:
                    loops.setdefault(header, set()).update(_reaching(before, latch, header))
        return sorted((sorted(body) for body in loops.values()), key=lambda loop: (len(loop), loop))

    def shortest_path(self, loop):
        """Returns the least number of instructions that a warp issues in one round of a loop."""
        header, body, after = loop[0], set(loop), self.successors()
        length, wave, seen = 1, {header}, {header}
        while not any(header in after[position] for position in wave):
            wave = {p for position in wave for p in after[position] if p in body} - seen
            if not wave:
                raise ValueError(f"{self.name} has a loop without a way back")
            seen |= wave
            length += 1
        return length

    def successors(self):
        """Returns the positions that can follow each position."""
        found = []
        for position, instruction in enumerate(self.code):
            after = []
            target = TARGET.search(instruction.operands[-1]) if instruction.operands else None
            jumps = instruction.operation in ("BRA", "EXIT", "RET", "BRX", "JMP")
            if instruction.operation == "BRA" and target:
                after.append(self.labels[target[1]])
            if (not jumps or instruction.is_conditional) and position + 1 < len(self.code):
                after.append(position + 1)
            found.append([p for p in after if p < len(self.code)])
        return found


def _reaching(before, latch, header):
    """Returns the positions from which `latch` is reached without passing `header`, and both."""
    body, stack = {header, latch}, [latch]
    while stack:
        position = stack.pop()
        if position != header:
            new = [p for p in before[position] if p not in body]
            body.update(new)
            stack += new
    return body


def disassemble(nvdisasm, code):
    """Returns the kernels of a file of machine code, by name."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([nvdisasm, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {os.path.basename(nvdisasm)}: {done.stderr}")
    return parse(done.stdout)


def parse(text):
    """Returns the kernels of disassembled code, by name. The padding behind a kernel is left out."""
    kernels, kernel = {}, None
    for line in text.splitlines():
        if start := re.match(r"^\.text\.(\w+):", line):
            kernel = kernels[start[1]] = Kernel(start[1])
        elif kernel and (label := LABEL.match(line)):
            kernel.labels[label[1]] = len(kernel.code)
        elif kernel and (found := LINE.match(line)):
            operands = [part.strip() for part in found["operands"].split(",") if part.strip()]
            kernel.code.append(Instruction((found["guard"] or "").strip(), found["name"], operands))
    for kernel in kernels.values():
        while kernel.code and kernel.code[-1].operation == "NOP":
            kernel.code.pop()
    return kernels
