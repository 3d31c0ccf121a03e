package redirect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// namespaces starts two network namespaces with a cable between them: 10.9.0.1
// in the first, 10.9.0.2 in the second.
func namespaces(t *testing.T) (first, second string) {
	t.Helper()
	first, second = namespace(t), namespace(t)
	cable := "ip link add v1 type veth peer name v2 && ip link set v2 netns " + strings.Split(second, "/")[2] +
		" && ip addr add 10.9.0.1/24 dev v1 && ip link set v1 up"
	if out, err := in(t, first, "sh", "-c", cable).CombinedOutput(); err != nil {
		t.Skipf("NOT RUN: no pair of interfaces can be made here: %s", out)
	}
	require.NoError(t, in(t, second, "sh", "-c", "ip addr add 10.9.0.2/24 dev v2 && ip link set v2 up").Run())
	return first, second
}

func namespace(t *testing.T) (path string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep 600")
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, _ := bufio.NewReader(out).ReadString('\n')
	if line != "ready\n" {
		t.Skip("NOT RUN: no network namespace can be made here")
	}
	return fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
}

// in runs a command in a namespace.
func in(t *testing.T, netns string, argv ...string) *exec.Cmd {
	t.Helper()
	return exec.CommandContext(t.Context(), "nsenter", append([]string{"--net=" + netns}, argv...)...)
}

// TestNamespace applies the rules twice, connects as the application and as the proxy, and
// removes the rules.
func TestNamespace(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("NOT RUN: it takes root to redirect anything")
	}
	for _, mode := range []Mode{NFT, Legacy} {
		t.Run(string(mode), func(t *testing.T) {
			for _, tool := range []string{"ip", "unshare", "nsenter", "bash", "timeout", "iptables" + mode.suffix(), "ip6tables" + mode.suffix()} {
				if _, err := exec.LookPath(tool); err != nil {
					t.Skip("NOT RUN: there is no " + tool + " on this machine")
				}
			}
			netns, outside := namespaces(t)
			p := Program{
				Mode: mode, Families: []Family{IPv4, IPv6}, Netns: netns, Log: slog.New(slog.DiscardHandler), LookPath: exec.LookPath,
				Run: func(ctx context.Context, argv []string) ([]byte, error) {
					out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
					if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
						return failed.Stderr, err
					}
					return out, err
				},
			}
			dump := func() (all string) {
				for _, name := range []string{"iptables", "ip6tables"} {
					out, err := in(t, netns, name+mode.suffix()+"-save", "-t", "nat").Output()
					require.NoError(t, err)
					for line := range strings.Lines(string(out)) {
						if strings.Contains(line, "PROXY_INIT") {
							all += line
						}
					}
				}
				return all
			}
			c := worked()
			c.SubnetsToIgnore = []string{"10.99.0.0/16", "fd00::/8"}
			require.NoError(t, p.Redirect(t.Context(), c))
			once := dump()
			assert.Equal(t, 11*2, strings.Count(once, "\n"), once)
			require.NoError(t, p.Redirect(t.Context(), c))
			assert.Equal(t, once, dump(), "a second time changes something")
			checkTraffic(t, netns, outside)
			require.NoError(t, p.Cleanup(t.Context()))
			assert.Empty(t, dump())
		})
	}
}

func checkTraffic(t *testing.T, netns, outside string) {
	t.Helper()
	outbound, inbound := listening(t, netns, 4140), listening(t, netns, 4143)
	connect := func(from, to string, argv ...string) error {
		// A port without a listener rejects at once. The timeout is for a slow machine.
		return in(t, from, append(argv, "timeout", "30", "bash", "-c", "exec 3<>/dev/tcp/"+to)...).Run()
	}
	// No server listens at the other end of the link, so a connection that is not
	// redirected is refused.
	assert.Error(t, connect(netns, "10.9.0.2/4567"), "a port that is ignored")
	assert.Error(t, connect(netns, "10.9.0.2/80", "--setuid", "2102"), "the proxy itself")
	assert.Error(t, connect(netns, "127.0.0.1/80"), "loopback")
	require.NoError(t, connect(netns, "10.9.0.2/81", "--setuid", "2103"))
	assert.Equal(t, "10.9.0.2:81\n", outbound())

	assert.Error(t, connect(outside, "10.9.0.1/4191"), "a port that is ignored")
	require.NoError(t, connect(outside, "10.9.0.1/82"))
	assert.Equal(t, "10.9.0.1:82\n", inbound())
}

// listening starts a proxy. next returns the original destination of the next connection.
func listening(t *testing.T, netns string, port int) (next func() string) {
	t.Helper()
	proxy := in(t, netns, os.Args[0])
	proxy.Env = append(os.Environ(), fmt.Sprintf("%s=0.0.0.0:%d", listenEnv, port))
	out, err := proxy.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, proxy.Start())
	t.Cleanup(func() {
		_ = proxy.Process.Kill()
		_ = proxy.Wait()
	})
	lines := bufio.NewReader(out)
	next = func() string {
		line, err := lines.ReadString('\n')
		assert.NoError(t, err)
		return line
	}
	require.Equal(t, "listening\n", next())
	return next
}
