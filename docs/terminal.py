#!/usr/bin/env python3
"""Makes a picture of the README from a real run: python3 docs/terminal.py terminal|guard OUT.svg

Needs `pip install rich`, and hermes-sandbox on PATH. Run it in a git repository; for `terminal` as a user who has ~/.ssh/id_ed25519
and GITHUB_TOKEN set: the picture shows that neither goes in.
"""
import re, subprocess, sys

from rich.console import Console
from rich.text import Text

TERMINAL = [
    "hermes-sandbox run -- git log --oneline",
    "hermes-sandbox run -- cat ~/.ssh/id_ed25519",
    "hermes-sandbox run -- curl -sS https://example.com",
    "hermes-sandbox run -- sh -c 'echo \"token: [$GITHUB_TOKEN]\"; echo x > /etc/motd'",
    "hermes-sandbox explain path ~/.ssh/id_ed25519",
]

GUARD = [
    "hermes-sandbox run -- sh -c 'cp hook.sh .git/hooks/pre-commit; git config core.pager ./x; echo new >> notes.txt; git commit -qam two'",
    "git log --oneline; ls .git/hooks; git config core.pager",
    "hermes-sandbox quarantine list",
    "hermes-sandbox run --overlay -- sh -c 'sed -i s/first/1st/ notes.txt; rm hook.sh'",
    "hermes-sandbox changes diff --color always",
]
COMMANDS = {"terminal": TERMINAL, "guard": GUARD}[sys.argv[1]]

console = Console(record=True, width=92, file=open("/dev/null", "w"), force_terminal=True, color_system="truecolor")
for command in COMMANDS:
    console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
    result = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    console.print(Text.from_ansi(result.stdout.decode().rstrip("\n")))
    if result.returncode:
        console.print(Text(f"(status {result.returncode})", "dim"))
svg = console.export_svg(title="hermes-sandbox")
svg = re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.S)  # fonts of the reader, none from the network
with open(sys.argv[2], "w") as out:
    out.write("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
