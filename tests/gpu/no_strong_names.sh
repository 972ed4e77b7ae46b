#!/bin/sh
# Sources that are compiled once for each data type must not define a name that is in every object:
# the GPU half would not link. no_strong_names.sh OBJECT...
strong=$(nm -AC --defined-only "$@" | grep ' [TDBR] ')
[ -z "$strong" ] && exit 0
echo "expected only inline, static or templates' names, found in what is compiled for each type:"
echo "$strong"
exit 1
