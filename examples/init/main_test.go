package main

import (
	"bytes"
	"context"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/gotower/gotower/examples/init/redirect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func ran(t *testing.T, args ...string) (out, errs string, err error) {
	t.Helper()
	var o, e bytes.Buffer
	err = run(t.Context(), append(args, "--simulate"), &o, &e)
	return o.String(), e.String(), err
}

// The flags are those of linkerd's chart.
func TestSimulate(t *testing.T) {
	out, errs, err := ran(t, "--incoming-proxy-port", "4143", "--outgoing-proxy-port", "4140", "--proxy-uid", "2102",
		"--inbound-ports-to-ignore", "4190,4191,4567,4568", "--outbound-ports-to-ignore", "4567,4568", "--iptables-mode", "nft")
	require.NoError(t, err)
	assert.Empty(t, errs)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, lines, 20)
	assert.Equal(t, "iptables-nft -t nat -A PROXY_INIT_REDIRECT -p tcp --match multiport --dports 4190,4191,4567,4568 -j RETURN"+
		" -m comment --comment proxy-init/ignore-port-4190,4191,4567,4568", lines[1])
	assert.Equal(t, "ip6tables-nft -t nat -A OUTPUT -j PROXY_INIT_OUTPUT -m comment --comment proxy-init/install-proxy-init-output", lines[19])
}

func TestFlags(t *testing.T) {
	out, errs, err := ran(t, "-p", "1", "-o=2", "-u", "3", "-g", "4", "-r", "80,8080", "-w", "--ipv6=false", "--netns", "/n",
		"--subnets-to-ignore", "10.0.0.0/8,10.1.0.0/16", "--inbound-ports-to-ignore", "x", "--log-format", "json", "--timeout-close-wait-secs", "60")
	require.NoError(t, err)
	assert.Contains(t, errs, `{"`)
	assert.Contains(t, errs, `\"x\" must be a port or`)
	for line := range strings.Lines(out) {
		assert.True(t, strings.HasPrefix(line, "nsenter --net=/n -- "), line)
	}
	for _, want := range []string{
		"sysctl -w net.netfilter.nf_conntrack_tcp_timeout_close_wait=60\n", "iptables-legacy -t nat -N PROXY_INIT_REDIRECT -w\n",
		"--uid-owner 3 ", "--gid-owner 4 ", "--destination-port 8080 -j REDIRECT --to-port 1 ", "-s 10.1.0.0/16 ", "--to-port 2 ",
	} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "ip6tables")
	_, errs, err = ran(t, "-p", "1", "-o", "2", "--firewall-bin-path", "iptables-nft", "--firewall-save-bin-path", "iptables-nft-save")
	require.NoError(t, err)
	assert.Contains(t, errs, "in a loop")
}

// A chart leaves lists empty, and people put spaces into them.
func TestLists(t *testing.T) {
	out, errs, err := ran(t, "-p", "1", "-o", "2", "-u", "3", "--inbound-ports-to-ignore", "", "--outbound-ports-to-ignore=", "--subnets-to-ignore", "")
	require.NoError(t, err)
	assert.Empty(t, errs)
	assert.NotContains(t, out, "ignore-port")
	assert.NotContains(t, out, "ignore-subnet")
	out, errs, err = ran(t, "-p", "1", "-o", "2", "-u", "3", "--inbound-ports-to-ignore", "80, 81", "--subnets-to-ignore", "10.0.0.0/8, 10.1.0.0/16 ")
	require.NoError(t, err)
	assert.Empty(t, errs)
	assert.Contains(t, out, " --dports 80,81 ")
	assert.Contains(t, out, " -s 10.1.0.0/16 -m comment --comment proxy-init/ignore-subnet-10.1.0.0/16\n")
}

func TestErrors(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"", "--incoming-proxy-port and --outgoing-proxy-port: required, a port from 0 to 65535; see -help"},
		{"-p 1 -u 3", "--outgoing-proxy-port: required, a port from 0 to 65535; see -help"},
		{"-p -2 -o 2 -u 1", "--incoming-proxy-port: -2 must be a port from 0 to 65535; see -help"},
		{"-p 1 -o 65536 -u 1", "--outgoing-proxy-port: 65536"},
		{"-p 1 -o 2 -u 0", redirect.ErrRoot.Error()},
		{"-p 1 -o 2 -u 0 -g 0", "--proxy-uid 0 and --proxy-gid 0: " + redirect.ErrRoot.Error()},
		{"-p 1 -o 2 -u 4294967295", "--proxy-uid: 4294967295 must be at most"},
		{"-p 1 -o 2 -g 4294967296", "--proxy-gid: 4294967296 must be at most"},
		{"-p 1 -o 2 -u 1 --subnets-to-ignore 10.0.0.0/8,", `"" must be a CIDR`},
		{"-p 1 -o 2 -u 1 --subnets-to-ignore 10.0.0.1", "must be a CIDR"},
		{"-p 1 -o 2 -u 1 -r x", `"x": must be a port`},
		{"-p 1 -o 2 -u 1 --iptables-mode x", "--iptables-mode"},
		{"-p 1 -o 2 -u 1 --log-level x", "--log-level"},
		{"-p 1 -o 2 -u 1 --log-format x", "--log-format"},
		{"-p 1 x -o 2", `"x": arguments must be flags; see -help`},
		{"-h", flag.ErrHelp.Error()},
	} {
		out, errs, err := ran(t, strings.Fields(tt.args)...)
		assert.Equal(t, tt.args == "-h", strings.Contains(errs, "init redirects"), errs)
		assert.ErrorContains(t, err, tt.want)
		assert.NotContains(t, err.Error(), "\n", "one mistake is one line")
		assert.Empty(t, out)
	}
}

// A child of a command may outlive it and keep its output open. command does not wait for
// the child.
func TestCommandCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	file := filepath.Join(t.TempDir(), "started")
	started := make(chan int, 1)
	go func() {
		defer cancel()
		for {
			if content, err := os.ReadFile(file); err == nil && bytes.HasSuffix(content, []byte("\n")) {
				pid, _ := strconv.Atoi(strings.TrimSpace(string(content)))
				started <- pid
				return
			}
			runtime.Gosched()
		}
	}()
	before := time.Now()
	_, err := command(ctx, []string{"sh", "-c", "sleep 60 & echo $! > " + file + "; wait"})
	took := time.Since(before)
	other, found := os.FindProcess(<-started)
	require.NoError(t, found)
	require.NoError(t, other.Kill())
	require.Error(t, err)
	require.Less(t, took, 50*time.Second)
}
