"""`python -m embodied_kv.demo`: see `demo`."""

from embodied_kv.demo.demo import main

main()
