package sidecar_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gotower/gotower/examples/internal/h2spectest"
)

// TestConnectConformance runs the conformance tests for Connect, gRPC and gRPC-Web, with their
// reference client and server on either side of the proxies. It requires GOTOWER_TESTS=full and the
// programs that .ci/connect.sh builds.
//
// In the mode "server", the client checks responses and sends invalid requests. In the mode
// "client", the server checks requests and sends invalid responses.
func TestConnectConformance(t *testing.T) {
	program := h2spectest.Program(t, "connect", "connectconformance")
	for mode, cases := range map[string]string{"server": "Total cases: 5438\n", "client": "Total cases: 6767\n"} {
		for _, way := range []string{"outbound", "inbound", "mesh"} {
			t.Run(mode+"/"+way, func(t *testing.T) {
				t.Parallel()
				app := freeAddr(t)
				host, port, err := net.SplitHostPort(app)
				require.NoError(t, err)
				args := []string{"--mode", mode, "--conf", "testdata/connect.yaml", "--max-servers", "1"}
				peer := []string{"--", os.Args[0]}
				if mode == "server" {
					args = append(args, "--parallel", "32")
					peer = append(peer, h2spectest.Program(t, "connect", "referenceserver"), "-bind", host, "-port", port)
				} else {
					args = append(args, "--bind", host, "--port", port)
					peer = append(peer, h2spectest.Program(t, "connect", "referenceclient"), "-p", "32")
				}
				through := ways(t, app)[way]
				out := connectConformance(t, through, program, slices.Concat(args, peer))
				require.Contains(t, out[max(0, len(out)-500):], cases)
				failed := failedCase.FindAllStringSubmatch(out, -1)
				for i := 0; i < 3 && 0 < len(failed) && len(failed) < 20; i++ { // a busy machine exceeds time limits
					again := slices.Clone(args)
					for _, f := range failed {
						t.Log("tried again: " + f[0])
						again = append(again, "--run", f[1])
					}
					out = connectConformance(t, through, program, append(again, peer...))
					failed = failedCase.FindAllStringSubmatch(out, -1)
				}
				for _, f := range failed[:min(20, len(failed))] {
					assert.Fail(t, "a case failed", f[0])
				}
				require.Regexp(t, `\d passed, 0 failed\n$`, out[max(0, len(out)-500):])
			})
		}
	}
}

var failedCase = regexp.MustCompile(`(?m)^FAILED: (.*):\n(?:\t.*\n)*`)

// connectConformance returns the report, which lists failed cases.
func connectConformance(t *testing.T, through, program string, args []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), connectThrough+"="+through)
	out, err := cmd.CombinedOutput()
	if exit := new(exec.ExitError); !errors.As(err, &exit) {
		require.NoError(t, err, "%s", out)
	}
	return string(out)
}

// connectThrough is the environment variable that makes the test binary a peer.
const connectThrough = "GOTOWER_TEST_CONNECT_THROUGH"

// connectPeer runs the reference client or server that args name. It appends the proxy's address to
// messages that contain the server's address. That works because a field's last value wins.
func connectPeer(through string, args []string) error {
	addr, err := netip.ParseAddrPort(through)
	if err != nil {
		return err
	}
	pipe, child, err := os.Pipe()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if strings.HasSuffix(args[0], "client") {
		cmd.Stdin = pipe
		go addAddr(child, os.Stdin, addr, 6, 7) // host and port of ClientCompatRequest
	} else {
		cmd.Stdout = child
		go addAddr(os.Stdout, pipe, addr, 1, 2) // host and port of ServerCompatResponse
	}
	return cmd.Run()
}

// addAddr copies messages, each preceded by its length, and appends the fields host and port.
func addAddr(dst io.WriteCloser, src io.Reader, addr netip.AddrPort, host, port protowire.Number) {
	defer dst.Close()
	fields := protowire.AppendTag(nil, host, protowire.BytesType)
	fields = protowire.AppendString(fields, addr.Addr().String())
	fields = protowire.AppendTag(fields, port, protowire.VarintType)
	fields = protowire.AppendVarint(fields, uint64(addr.Port()))
	var length [4]byte
	for {
		if _, err := io.ReadFull(src, length[:]); err != nil {
			return
		}
		message := make([]byte, binary.BigEndian.Uint32(length[:]))
		if _, err := io.ReadFull(src, message); err != nil {
			return
		}
		binary.BigEndian.PutUint32(length[:], uint32(len(message)+len(fields)))
		if _, err := dst.Write(slices.Concat(length[:], message, fields)); err != nil {
			return
		}
	}
}
