package tcplayer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// traced is set in the traced process, to the address of its upstream.
const traced = "TCPLAYER_TEST_TRACED"

// tracedHow is "metered" in that process if connections are metered.
const tracedHow = traced + "_HOW"

// After detection the kernel copies. The process reads little more than the
// header that it removes.
func TestForwardSpliceAfterDetection(t *testing.T) {
	if to := os.Getenv(traced); to != "" {
		forwardTraced(t, to)
		return
	}
	for _, how := range []string{"plain", "metered"} {
		t.Run(how, func(t *testing.T) { testSplices(t, how) })
	}
}

func testSplices(t *testing.T, how string) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "strace")
	if err := exec.CommandContext(t.Context(), "strace", "-f", "-o", log, "true").Run(); err != nil {
		t.Skip("NOT RUN: it needs strace: ", err)
	}
	target, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer target.Close()
	child := exec.CommandContext(t.Context(), "strace", "-f", "-qq", "-s", "0", "-e", "trace=splice,read,recvfrom", "-o", log,
		os.Args[0], "-test.run=^TestForwardSpliceAfterDetection$", "-test.timeout=2m")
	child.Env = append(os.Environ(), traced+"="+target.Addr().String(), tracedHow+"="+how)
	stop, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	lines := bufio.NewReader(out)
	at, err := lines.ReadString('\n')
	require.NoError(t, err)
	go io.Copy(io.Discard, lines)

	const size = 4 << 20
	client, err := net.Dial("tcp", strings.TrimSpace(at))
	require.NoError(t, err)
	defer client.Close()
	require.NoError(t, client.SetDeadline(time.Now().Add(time.Minute)))
	go func() {
		io.WriteString(client, "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n")
		client.Write(make([]byte, size))
		closeWrite(client)
	}()
	server, err := target.Accept()
	require.NoError(t, err)
	n, err := io.Copy(io.Discard, server)
	require.NoError(t, err)
	assert.EqualValues(t, size, n)
	go func() {
		server.Write(make([]byte, size))
		server.Close()
	}()
	n, err = io.Copy(io.Discard, client)
	require.NoError(t, err)
	assert.EqualValues(t, size, n)
	stop.Close()
	require.NoError(t, child.Wait())

	spliced, read := moved(t, log)
	t.Logf("of %d bytes each way %d were spliced, in and out of a pipe; %d were read", size, spliced, read)
	assert.Equal(t, 4*size, spliced)
	assert.Less(t, read, 64<<10, "what a Go program reads when it starts is in it")
}

// moved counts the bytes in the output of strace, without MSG_PEEK.
func moved(t *testing.T, log string) (spliced, read int) {
	t.Helper()
	all, err := os.ReadFile(log)
	require.NoError(t, err)
	for _, call := range regexp.MustCompile(`(?m)(splice|read|recvfrom)\b.*= (\d+)$`).FindAllStringSubmatch(string(all), -1) {
		n, err := strconv.Atoi(call[2])
		require.NoError(t, err)
		switch {
		case call[1] == "splice":
			spliced += n
		case !strings.Contains(call[0], "MSG_PEEK"):
			read += n
		}
	}
	return spliced, read
}

func forwardTraced(t *testing.T, to string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	fmt.Println(l.Addr())
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	metered := func(s Server) Server { return s }
	connect := NewEndpoint(ctx, to)
	if os.Getenv(tracedHow) == "metered" {
		m := NewMeter(Instruments{})
		metered, connect = m.WrapServer, NewEndpoint(ctx, to, WithDialContext(m.WrapDial(new(net.Dialer).DialContext)))
	}
	forward := Forward(connect)
	detect := DetectTLS(nil, MatchServerName(), TLSServers{Cleartext: metered(Detect(Protocols{Opaque: forward}))})
	fixed := Transparent(FixedDst(netip.MustParseAddrPort("192.0.2.1:80")), detect, nil)
	require.NoError(t, Serve(ctx, l, Transparent(ProxyProtocol(), fixed, nil)))
}
