# `make` lists the targets. What is behind them: `cargo xtask help`.

.DEFAULT_GOAL := help
.PHONY: help demo test check proof bench experiments soak fuzz differ lifetimes compat vm processors deb deb-test build

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: ## a proxy on AF_XDP next to the same proxy on kernel sockets, with a report (3 minutes)
	@lab/demo

test: ## every deterministic test, in 15 minutes: the last line is "N passed, N failed"
	@cargo xtask test

check: ## before a change lands: formatting, sources, clippy, rustdoc, licences
	@cargo xtask check

proof: ## the long rest of the tests, part by part; goes on where it stopped (hours; root)
	@cargo xtask proof

bench: ## figures next to a peer's of the same run; QUICK=1 for a short run
	@cargo xtask bench $(if $(QUICK),--quick)

experiments: ## those of the papers, into docs/EXPERIMENTS.md; QUICK=1 for a short run (root)
	@cargo xtask experiments --keep $(if $(QUICK),--quick)

soak: ## simulated worlds from random seeds for SECONDS (60); a failure prints how to replay it
	cargo run --release -p fs-sim -- soak --seconds $(or $(SECONDS),60)

fuzz: ## all fuzz targets for MINUTES (10)
	@cargo xtask fuzz --seconds $$(( $(or $(MINUTES),10) * 60 ))

differ: ## random programs of socket calls for SECONDS (60), on the kernel and under preload; COVERAGE=PAGE (root)
	@SECONDS=$(or $(SECONDS),60) cargo xtask proof --again differ

lifetimes: ## CONNECTIONS (1000000) between processes that exit and are killed: none is lost or hangs (root)
	@cargo xtask proof --again lifetimes

compat: ## servers under load, reloads and kills: REQUESTS (100000) for each of PROGRAMS (all), as on the kernel (root)
	@cargo xtask proof --again compat

vm: ## other kernels and cards, in QEMU: docs/PLATFORMS.md; QUICK=1, ONLY=6.12/virtio4 (root)
	@cargo xtask proof --again vm

processors: ## built for aarch64; unit tests there and on a big-endian processor, by QEMU
	@cargo xtask proof --again processors

deb: ## Debian packages in target/debian: daemon, library and program; debug symbols
	@cargo xtask deb

deb-test: ## the same in clean roots of Debian 12 and 13 under systemd (root)
	@cargo xtask deb --test

build: ## all programs, optimised
	cargo build --release --workspace --bins
