# demo   a proxy on AF_XDP beside the same proxy on kernel sockets, with a report (two minutes)
# test   everything: unit, model, simulation, link and lab tests
# check  what every change has to pass before it lands: formatting, scripts, unsafe code, packages, clippy, rustdoc, public items
# bench  in memory, shared memory, veth, unmodified programs, each with a peer measured in the same run; QUICK=1 for a short one
# experiments  those of the papers: docs/EXPERIMENTS.md is written; QUICK=1 for a short run at small sizes (root)
# soak   simulated worlds from random seeds for SECONDS (60), every scenario in turn; a failure prints how to replay it
# fuzz   all fuzz targets for MINUTES (10): hostile frames, options, reassembly, scoreboard, two ends, parser, control messages
# differ random programs of socket calls for SECONDS (60), on the kernel and under preload; what differs is printed small (root);
#        COVERAGE=docs/DIFFER.md writes which calls were made
# lifetimes  CONNECTIONS (1000000) between processes that exit and are killed on both sides; none may be lost or hang
# compat  servers and proxies under load, reloads and kills, on the kernel's sockets and on ours: REQUESTS (100000) for each of
#        PROGRAMS (all; parts of names, see the table that it writes into docs/COMPATIBILITY.md)
# vm     this tree on other kernels and cards, in QEMU: the table of docs/PLATFORMS.md; QUICK=1 for a short one, ONLY=6.12/virtio4 for
#        some cells
# processors  the workspace built for aarch64, unit tests there and (the engine's) on a big-endian processor, by QEMU
# deb    Debian packages in target/debian: daemon, library and program; debug symbols
# deb-test  the same in clean roots of Debian 12 and 13 under systemd (root; the first time debootstrap loads them)
# build  the examples, optimised

.PHONY: demo test check bench experiments soak fuzz differ lifetimes compat vm processors deb deb-test build

demo:
	@lab/demo

test:
	@lab/test

check:
	@cargo fmt --all --check
	@lab/test source package clippy doc

bench:
	@lab/bench $(if $(QUICK),--quick)

experiments:
	@lab/experiments --keep $(if $(QUICK),--quick)

soak:
	cargo run --release -p fs-sim -- soak --seconds $(or $(SECONDS),60)

fuzz:
	@lab/fuzz --seconds $$(( $(or $(MINUTES),10) * 60 ))

lifetimes:
	@lab/lifetimes $(or $(CONNECTIONS),1000000)

compat:
	@lab/install compat
	cargo build --release -p fs-cli -p fs-capi -p fs-tests
	cargo run --release --quiet -p fs-tests --bin compat -- --requests $(or $(REQUESTS),100000) $(PROGRAMS)

vm:
	@lab/install vm
	@lab/vm matrix $(if $(QUICK),--quick) $(if $(ONLY),--only $(ONLY))

processors:
	@lab/install processors
	@lab/processors

deb:
	@lab/deb

deb-test:
	@lab/deb-test

build:
	cargo build --release --workspace --bins

differ:
	cargo build --release -p fs-cli -p fs-capi -p fs-differ
	bad=0; \
	target/release/fs-differ run tests/differ --seconds $(or $(SECONDS),60) --jobs 2 --differences 1000 \
		--allowed tests/differ/allowed.txt --not-yet tests/differ/not-yet.txt $(if $(COVERAGE),--coverage $(COVERAGE)) || bad=1; \
	target/release/fs-differ run tests/differ/wire --wire --seconds $(or $(SECONDS),60) --jobs 2 --differences 1000 \
		--allowed tests/differ/allowed.txt --not-yet tests/differ/not-yet.txt || bad=1; \
	exit $$bad
