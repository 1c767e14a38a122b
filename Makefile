# Wallaby's everyday commands. `make` lists them; the words after ## are the help text.

CARGO ?= cargo
# Handed to the program: make demo ARGS="--link 1ms", make bench ARGS="--pin 0 --json"
ARGS ?=

# A shell that rustup has not yet been added to still finds the toolchain.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# The steps of a recipe share one target folder and must come in the order written.
.NOTPARALLEL:
.DEFAULT_GOAL := help

##@ Start here

.PHONY: help
help: ## List the targets
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo

.PHONY: demo
demo: setup-build ## A cluster of processes, an index, queries by multi-hop calls and by plain RPC
	@$(CARGO) build --release --locked -p wallaby-cli
	@$(CARGO) run --release --locked -q -p wallaby-cli -- demo $(ARGS)

.PHONY: test
test: setup-test verify ## Everything CI checks, on a fresh machine too: set up, then verify

##@ While working

.PHONY: verify
verify: ## Check format, lints, docs and run all tests; writes nothing but build output
	@echo "== format: cargo fmt --check"
	@$(CARGO) fmt --all --check || { echo "verify: run 'make fix' to format the code" >&2; exit 1; }
	@echo "== lints: cargo clippy, warnings denied"
	@$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	@echo "== lints: the core without its optional features"
	@$(CARGO) clippy -p wallaby-proto --locked -- -D warnings
	@echo "== docs: cargo doc, warnings denied"
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked
	@echo "== tests: cargo test, doc tests included"
	@$(CARGO) test --workspace --locked --no-fail-fast
	@echo "== simulator: the protocol in 2,000 random worlds"
	@$(CARGO) run -q -p wallaby-sim --locked --profile sim -- --seeds 2000

.PHONY: fix
fix: setup-test ## Format the code and apply what clippy can repair; brings Cargo.lock up to date
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged
	$(CARGO) fmt --all

.PHONY: doc
doc: ## Build the API documentation and print where it is
	@$(CARGO) doc --workspace --no-deps
	@echo "$${CARGO_TARGET_DIR:-target}/doc/wallaby/index.html"

.PHONY: clean
clean: ## Remove all build output
	$(CARGO) clean

##@ Now and then

.PHONY: bench
bench: setup-build ## Multi-hop calls against RPC and raw-socket floors, pinned to one core (release)
	@$(CARGO) build --release --locked -p wallaby-cli
	@for transport in unix tcp; do for bench in hops fanout; do \
		$(CARGO) run --release --locked -q -p wallaby-cli -- \
			bench $$bench --transport $$transport $(or $(ARGS),--pin 0) || exit 1; \
	done; done

.PHONY: bench-report
bench-report: setup-build ## Measure everything again and rewrite docs/performance.md and docs/results (half an hour)
	@$(CARGO) run --release --locked -q -p wallaby-cli -- bench report $(ARGS)

.PHONY: soak
soak: setup-test ## The protocol in 100,000 random worlds, from seed 0 on or as ARGS says (some minutes)
	@$(CARGO) run -q -p wallaby-sim --locked --profile sim -- $(or $(ARGS),--seeds 100000)

.PHONY: callgrind
callgrind: ## Instructions and nanoseconds per call of the protocol core alone (release)
	@scripts/setup.sh callgrind
	@scripts/callgrind.sh

.PHONY: audit
audit: ## Check the dependencies against deny.toml; compiles cargo-deny once
	@scripts/setup.sh audit
	@scripts/audit.sh

# Set-up is silent when nothing is missing.
.PHONY: setup-build setup-test
setup-build:
	@scripts/setup.sh build
setup-test:
	@scripts/setup.sh test
