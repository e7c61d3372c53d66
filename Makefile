# make demo, make test: two commands. ROS_DISTRO=kilted chooses another ROS 2.
.PHONY: help setup test-packages compile demo docs test test-all openpi-client bench lint types format lock clean distclean
env = ISOLATED=1 tools/env
tests = test benchmarks/test training/test
parallel = --numprocesses 2 --dist loadfile --max-worker-restart 0

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' Makefile

setup:  ## environment and package, whatever of them is missing
	@tools/setup

test-packages:  ## setup, and packages that only tests need
	@tools/setup tests

compile:  ## setup, and compiled code for the simulated robot's engine, which takes minutes at first
	@tools/setup compiled

demo: setup  ## the simulated robot for 20 s and a mission, with a report in out/demo
	@$(env) python -m embodied_kv.demo --seconds 20 --out out/demo

docs:  ## the documentation as a site in out/site; needs neither ROS 2 nor `make setup`
	@tools/site

test: test-packages  ## the tests of the package but the slow ones, on two cores; the same examples each time
	@$(env) python -m pytest $(parallel) -m 'not slow' --hypothesis-profile=ci

test-all: test-packages  ## all tests, those of benchmarks and training too; other examples each time
	@$(env) python -m pytest $(parallel) -o faulthandler_timeout=7500 $(tests)

openpi-client: setup  ## openpi's own client, in a locked environment of its own, against our server
	@$(env) python -m pytest -m slow test/serving/test_openpi_client_is_served.py

bench: setup  ## all benchmarks, with results in out/bench
	@$(env) python -m benchmarks

lint: setup  ## what ruff and the spelling check find, changing nothing
	@$(env) ruff check && $(env) ruff format --check && $(env) typos

types: setup  ## what mypy finds in the package
	@$(env) python -m mypy

format: setup  ## ruff's fixes and format
	@$(env) ruff check --fix && $(env) ruff format

lock: setup  ## exact versions of all dependencies anew: tools/lock-*.txt
	@$(env) python tools/lock.py

clean:  ## remove what was built and what runs left
	rm -rf build build-* install install-* log log-* out .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -path './.venv*' -prune -o -name __pycache__ -exec rm -rf {} +

distclean: clean  ## and the environments
	rm -rf .venv .venv-*
