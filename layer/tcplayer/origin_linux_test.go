package tcplayer

import (
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inNetwork is set in the process with its own network namespace.
const inNetwork = "TCPLAYER_TEST_IN_NETWORK"

// The rules are those of a real kernel in a network namespace of the test.
func TestRedirected(t *testing.T) {
	if os.Getenv(inNetwork) != "" {
		testRedirected(t)
		return
	}
	for _, tool := range []string{"ip", "iptables", "ip6tables"} {
		if _, err := exec.LookPath(tool); err != nil || os.Getuid() != 0 {
			t.Skipf("NOT RUN: the kernel's original destination needs root, and %s (%v)", tool, err)
		}
	}
	again := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRedirected$", "-test.v", "-test.timeout=2m")
	again.Env = append(os.Environ(), inNetwork+"=1")
	again.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	out, err := again.CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.Contains(t, string(out), "--- PASS: TestRedirected")
}

func testRedirected(t *testing.T) {
	t.Helper()
	listener := func(network, at string) net.Listener {
		var cfg net.ListenConfig
		cfg.SetMultipathTCP(false)
		l, err := cfg.Listen(t.Context(), network, at)
		require.NoError(t, err)
		return l
	}
	command(t, "ip", "link", "set", "lo", "up")
	four, six, both := listener("tcp4", "127.0.0.1:0"), listener("tcp6", "[::1]:0"), listener("tcp", "[::]:0")
	for _, rule := range []struct{ tables, dst, port string }{
		{"iptables", "192.0.2.1", "80"}, {"ip6tables", "2001:db8::1", "80"}, {"iptables", "192.0.2.1", "81"}, {"ip6tables", "2001:db8::1", "81"},
	} {
		l := both
		switch {
		case rule.port == "80" && rule.tables == "iptables":
			l = four
		case rule.port == "80":
			l = six
		}
		_, port, _ := net.SplitHostPort(l.Addr().String())
		command(t, rule.tables, "-t", "nat", "-A", "OUTPUT", "-p", "tcp", "-d", rule.dst, "--dport", rule.port, "-j", "REDIRECT", "--to-ports", port)
	}
	command(t, "ip", "route", "add", "192.0.2.0/24", "dev", "lo", "src", "127.0.0.1")
	command(t, "ip", "-6", "route", "add", "2001:db8::/32", "dev", "lo")

	ctx, end := context.WithCancel(t.Context())
	served := make(chan error, 3)
	for _, l := range []net.Listener{four, six, both} {
		go func() { served <- Serve(ctx, l, Transparent(SOOriginalDst(), asking(), named("direct"))) }()
	}
	for to, want := range map[string]string{
		"192.0.2.1:80": "192.0.2.1:80 true", "[2001:db8::1]:80": "[2001:db8::1]:80 true",
		"192.0.2.1:81": "192.0.2.1:81 true", "[2001:db8::1]:81": "[2001:db8::1]:81 true",
		four.Addr().String(): "direct: ", six.Addr().String(): "direct: ",
	} {
		for _, multipath := range []bool{false, true} { // the system's, where it has none
			dialer := net.Dialer{Timeout: 20 * time.Second}
			dialer.SetMultipathTCP(multipath)
			conn, err := dialer.DialContext(t.Context(), "tcp", to)
			require.NoError(t, err)
			require.NoError(t, conn.SetDeadline(time.Now().Add(20*time.Second)))
			require.NoError(t, closeWrite(conn))
			got, err := io.ReadAll(conn)
			assert.NoError(t, err, to)
			assert.Equal(t, want, string(got))
			conn.Close()
		}
	}
	end()
	for range cap(served) {
		require.NoError(t, <-served)
	}
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
}
