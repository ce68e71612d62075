# demo   a proxy on AF_XDP beside the same proxy on kernel sockets, with a report (two minutes)
# test   everything: unit, model, simulation, link and lab tests
# bench  in-memory and veth benches, each with a peer measured in the same run; QUICK=1 for a short one
# build  the examples, optimised

.PHONY: demo test bench build

demo:
	@lab/demo

test:
	@lab/test

bench:
	@lab/bench $(if $(QUICK),--quick)

build:
	cargo build --release --workspace --bins
