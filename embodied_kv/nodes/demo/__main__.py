"""`python -m embodied_kv.nodes.demo`: see `demo`."""

from embodied_kv.nodes.demo.demo import main

main()
