# demo   a proxy on AF_XDP beside the same proxy on kernel sockets, with a report (two minutes)
# test   everything: unit, model, simulation, link and lab tests
# bench  in memory, shared memory, veth, unmodified programs, each with a peer measured in the same run; QUICK=1 for a short one
# soak   simulated worlds from random seeds for SECONDS (60), every scenario in turn; a failure prints how to replay it
# fuzz   all fuzz targets for MINUTES (10): hostile frames, options, reassembly, scoreboard, two ends, parser, control messages
# build  the examples, optimised

.PHONY: demo test bench soak fuzz build

demo:
	@lab/demo

test:
	@lab/test

bench:
	@lab/bench $(if $(QUICK),--quick)

soak:
	cargo run --release -p fs-sim -- soak --seconds $(or $(SECONDS),60)

fuzz:
	@lab/fuzz --seconds $$(( $(or $(MINUTES),10) * 60 ))

build:
	cargo build --release --workspace --bins
