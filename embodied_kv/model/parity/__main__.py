import sys

from embodied_kv.model.parity.command import main

sys.exit(main())
