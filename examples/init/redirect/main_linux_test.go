package redirect

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

// listenEnv makes this binary a proxy that prints the original destinations of connections.
const listenEnv = "GOTOWER_TEST_LISTEN"

func TestMain(m *testing.M) {
	if addr := os.Getenv(listenEnv); addr != "" {
		if err := tellDestinations(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func tellDestinations(addr string) error {
	l, err := net.Listen("tcp4", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening")
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		const originalDst = 80                   // of linux/netfilter_ipv4.h
		if err := raw.Control(func(fd uintptr) { // a sockaddr_in fits into what this returns
			to, err := syscall.GetsockoptIPv6Mreq(int(fd), syscall.SOL_IP, originalDst)
			if err != nil {
				fmt.Println(err)
				return
			}
			a := to.Multiaddr
			fmt.Printf("%v:%d\n", net.IP(a[4:8]), int(a[2])<<8|int(a[3]))
		}); err != nil {
			return err
		}
		conn.Close()
	}
}
