# Wallaby's everyday commands. `make` lists them; the words after ## are the help text.

CARGO ?= cargo
# With most of release's speed and all assertions, as the simulator.
CHAOS = $(CARGO) run -q -p wallaby-chaos --locked --profile sim --
# What users read first: what else is published has heavy dependencies, which would be compiled for that alone.
DOCUMENTED = -p wallaby-proto -p wallaby-idl -p wallaby-macros -p wallaby-link -p wallaby -p wallaby-onc -p wallaby-tls \
	-p wallaby-chain -p wallaby-chain-guest -p wallaby-chain-macros
# Handed to the program: make demo ARGS="--link 1ms", make bench ARGS="--pin 0 --json"
ARGS ?=

# A shell that rustup has not yet been added to still finds the toolchain.
export PATH := $(PATH):$(or $(CARGO_HOME),$(HOME)/.cargo)/bin

# A machine of CI compiles once, and nobody debugs there: no step makes what only later builds and debuggers use.
ifeq ($(CI),true)
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := none
export CARGO_PROFILE_SIM_DEBUG := none
endif

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
	@$(CARGO) build --profile demo --locked -p wallaby-cli --no-default-features
	@$(CARGO) run --profile demo --locked -q -p wallaby-cli --no-default-features -- demo $(ARGS)

.PHONY: test
test: setup-test verify ## Everything CI checks, on a fresh machine too: set up, then verify

##@ While working

.PHONY: verify
verify: ## Check format, lints, docs and run all tests; writes nothing but build output
	@echo "== format: cargo fmt --check"
	@$(CARGO) fmt --all --check || { echo "verify: run 'make fix' to format the code" >&2; exit 1; }
	@echo "== lints: the core without its optional features"
	@$(CARGO) clippy -p wallaby-proto --locked -- -D warnings
	@echo "== platforms: the published crates on other systems and with the oldest Rust"
	@scripts/platforms.sh
	@echo "== docs: of the published crates, warnings denied"
	@RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --locked $(DOCUMENTED)
	@scripts/tests.sh
	@echo "== instructions: calls take no more than recorded"
	@scripts/instructions.sh check

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

.PHONY: bench-peers
bench-peers: setup-peers ## Wallaby beside tonic, NATS and others, pinned to one core; ARGS=--help says what else (release)
	@$(CARGO) build --release --locked --manifest-path bench-peers/Cargo.toml
	@$(CARGO) run --release --locked -q --manifest-path bench-peers/Cargo.toml -- $(or $(ARGS),hops --pin 0)

.PHONY: test-peers
test-peers: setup-peers ## Check and test the crate that compares Wallaby with its peers; nothing else compiles it
	@$(CARGO) fmt --check --manifest-path bench-peers/Cargo.toml
	@$(CARGO) clippy --all-targets --locked --manifest-path bench-peers/Cargo.toml -- -D warnings
	@$(CARGO) test --locked --manifest-path bench-peers/Cargo.toml

.PHONY: chaos
chaos: setup-chaos ## Processes killed, stopped and cut off under load, a minute each over TCP, UDP, unix sockets and shared memory
	@for transport in tcp udp unix shm; do \
		$(CHAOS) run --transport $$transport $(or $(ARGS),--seconds 60) || exit 1; \
	done

.PHONY: soak
soak: setup-chaos setup-fuzz ## 100,000 random worlds, models, fuzzing, chaos: an hour and a half (ARGS="fuzz- calm": these parts)
	@scripts/soak.sh $(ARGS)

.PHONY: model
model: setup-test ## Every run of small calls with a fault, two, or an abort; or of the scope that ARGS names
	@for scope in $(if $(ARGS),"$(ARGS)","--messages 5" "--messages 4 --faults 2" "--messages 4 --abort"); do \
		echo "== model: $$scope"; \
		$(CARGO) run -q -p wallaby-model --locked --profile sim -- $$scope || exit 1; \
	done

.PHONY: fuzz
fuzz: setup-fuzz ## A minute for each decoder and state machine; ARGS="client 600": which, for how many seconds
	@scripts/fuzz.sh $(or $(ARGS),all)

.PHONY: mutants
mutants: ## Which small changes of what differs from main no test notices; ARGS="-p wallaby-proto --shard 0/64": a sample
	@scripts/setup.sh mutants
	@mkdir -p target
	@git diff --merge-base $(or $(BASE),main) >target/changes.diff
	@WALLABY_CASES=0.05 $(CARGO) mutants --output target $(or $(ARGS),--in-diff target/changes.diff)

.PHONY: instructions
instructions: ## Compare the instructions of calls with those on record; ARGS=record writes them anew (release)
	@scripts/instructions.sh $(or $(ARGS),check)

.PHONY: audit
audit: ## Check the dependencies against deny.toml; compiles cargo-deny once
	@scripts/setup.sh audit
	@scripts/audit.sh

# Set-up is silent when nothing is missing.
.PHONY: setup-build setup-test setup-fuzz setup-chaos setup-peers
setup-build:
	@scripts/setup.sh build
setup-test:
	@scripts/setup.sh test
setup-fuzz:
	@scripts/setup.sh fuzz
setup-chaos:
	@scripts/setup.sh chaos
setup-peers:
	@scripts/setup.sh peers
