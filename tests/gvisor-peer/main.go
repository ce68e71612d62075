// gvisor-peer is an independent TCP peer: gVisor's netstack on an AF_PACKET socket, with its own addresses.
//
//	gvisor-peer -device NAME -addr CIDR,… -listen PORT              echoes what each connection brings
//	gvisor-peer -device NAME -addr CIDR,… -connect ADDR -bytes N    sends N bytes, wants them back, compares
//
// It prints "ready" when it listens, or one line with the SHA-256 of the echo after a connect.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/fdbased"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
)

const nic tcpip.NICID = 1

func main() {
	log.SetFlags(0)
	device := flag.String("device", "", "device to send and receive on")
	addrs := flag.String("addr", "", "own addresses with prefix lengths, separated by commas")
	listen := flag.Uint("listen", 0, "port to echo on")
	connect := flag.String("connect", "", "address and port to connect to")
	bytes := flag.Int64("bytes", 1<<20, "bytes to send")
	limit := flag.Duration("limit", time.Minute, "how long the transfer may take")
	flag.Parse()
	if err := run(*device, *addrs, uint16(*listen), *connect, *bytes, *limit); err != nil {
		log.Fatal(err)
	}
}

func run(device, addrs string, listen uint16, connect string, bytes int64, limit time.Duration) error {
	s, err := newStack(device, addrs)
	if err != nil {
		return err
	}
	if connect != "" {
		to, err := netip.ParseAddrPort(connect)
		if err != nil {
			return err
		}
		return exchange(s, to, bytes, limit)
	}
	return echo(s, listen)
}

// newStack makes a stack with one interface.
func newStack(device, addrs string) (*stack.Stack, error) {
	iface, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %q: %w", device, err)
	}
	fd, err := packetSocket(iface.Index)
	if err != nil {
		return nil, err
	}
	link, err := fdbased.New(&fdbased.Options{
		FDs:                []int{fd},
		MTU:                uint32(iface.MTU),
		EthernetHeader:     true,
		Address:            tcpip.LinkAddress(iface.HardwareAddr),
		PacketDispatchMode: fdbased.RecvMMsg,
	})
	if err != nil {
		return nil, fmt.Errorf("link: %w", err)
	}
	// The lab has no other host with these addresses, so duplicate address detection would only take time.
	withoutDAD := ipv6.NewProtocolWithOptions(ipv6.Options{DADConfigs: stack.DADConfigurations{}})
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{arp.NewProtocol, ipv4.NewProtocol, withoutDAD},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	if err := s.SetTransportProtocolOption(tcp.ProtocolNumber, &sack); err != nil {
		return nil, fmt.Errorf("SACK: %v", err)
	}
	if err := s.CreateNIC(nic, link); err != nil {
		return nil, fmt.Errorf("interface: %v", err)
	}
	for _, text := range strings.Split(addrs, ",") {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		if err := addAddress(s, prefix); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func addAddress(s *stack.Stack, prefix netip.Prefix) error {
	address := tcpip.ProtocolAddress{
		Protocol: protocol(prefix.Addr()),
		AddressWithPrefix: tcpip.AddressWithPrefix{
			Address:   tcpip.AddrFromSlice(prefix.Addr().AsSlice()),
			PrefixLen: prefix.Bits(),
		},
	}
	if err := s.AddProtocolAddress(nic, address, stack.AddressProperties{}); err != nil {
		return fmt.Errorf("address %v: %v", prefix, err)
	}
	s.AddRoute(tcpip.Route{Destination: address.AddressWithPrefix.Subnet(), NIC: nic})
	return nil
}

// packetSocket opens a socket that takes every packet of a device.
func packetSocket(index int) (int, error) {
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(all))
	if err != nil {
		return 0, fmt.Errorf("packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		return 0, fmt.Errorf("bind the packet socket: %w", err)
	}
	return fd, nil
}

func protocol(addr netip.Addr) tcpip.NetworkProtocolNumber {
	if addr.Is4() {
		return header.IPv4ProtocolNumber
	}
	return header.IPv6ProtocolNumber
}

// echo serves both IP versions: a listener without an address takes IPv4 too.
func echo(s *stack.Stack, port uint16) error {
	listener, err := gonet.ListenTCP(s, tcpip.FullAddress{NIC: nic, Port: port}, header.IPv6ProtocolNumber)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	fmt.Println("ready")
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			if _, err := io.Copy(conn, conn); err != nil {
				log.Printf("%v: %v", conn.RemoteAddr(), err)
			}
		}()
	}
}

// exchange sends pseudo-random bytes and reads them back at the same time.
func exchange(s *stack.Stack, to netip.AddrPort, bytes int64, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	remote := tcpip.FullAddress{NIC: nic, Addr: tcpip.AddrFromSlice(to.Addr().AsSlice()), Port: to.Port()}
	conn, err := gonet.DialContextTCP(ctx, s, remote, protocol(to.Addr()))
	if err != nil {
		return fmt.Errorf("connect to %v: %w", to, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	out, back := sha256.New(), sha256.New()
	go func() {
		source := io.LimitReader(rand.NewChaCha8([32]byte{1}), bytes)
		_, err := io.Copy(conn, io.TeeReader(source, out))
		sent <- errors.Join(err, conn.CloseWrite())
	}()
	got, err := io.Copy(back, conn)
	if err := errors.Join(err, <-sent); err != nil {
		return fmt.Errorf("after %d bytes: %w", got, err)
	}
	if got != bytes || string(out.Sum(nil)) != string(back.Sum(nil)) {
		return fmt.Errorf("%d of %d bytes came back, sent %x, got %x", got, bytes, out.Sum(nil), back.Sum(nil))
	}
	fmt.Printf("%d bytes %x\n", got, back.Sum(nil))
	return nil
}
