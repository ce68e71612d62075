#!/bin/sh
# Linux' defaults with larger buffers, CUBIC, no ECN and no restart after idle. The public suites' scripts start with it.
# On Linux a shell runs this file in the script's network namespace, where CUBIC is allowed only if it is the host's
# default or one of its allowed algorithms. The engine reads the settings.
sysctl -q net.ipv4.tcp_congestion_control=cubic || true
sysctl -q net.ipv4.tcp_rmem='4096 540000 15728640'
sysctl -q net.ipv4.tcp_wmem='4096 262144 4194304'
sysctl -q net.ipv4.tcp_timestamps=1
sysctl -q net.ipv4.tcp_sack=1
sysctl -q net.ipv4.tcp_syn_retries=5
sysctl -q net.ipv4.tcp_synack_retries=5
sysctl -q net.ipv4.tcp_slow_start_after_idle=0
sysctl -q net.ipv4.tcp_recovery=1
sysctl -q net.ipv4.tcp_ecn=0
sysctl -q net.ipv4.tcp_notsent_lowat=4294967295
sysctl -q net.ipv4.tcp_fastopen=0x70403
sysctl -q net.ipv4.tcp_fastopen_key=a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4
