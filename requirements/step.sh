#!/usr/bin/env bash
# step.sh TEXT COMMAND...: run a command that is quiet for long, and say every 15 seconds that it still runs.
echo "== $1"
# `read` waits without a process, which would hold the output open after the command has ended.
(exec 3<> <(:); while ! read -rt 15 -u 3; do echo "   ... $SECONDS s"; done) &
clock=$!
trap 'kill $clock 2>/dev/null' EXIT
"${@:2}"
