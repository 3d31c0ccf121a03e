package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	pb "github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// firstLine reads the line with the address.
func firstLine(t *testing.T, r io.Reader) string {
	t.Helper()
	line := make([]byte, 0, 128)
	for b := make([]byte, 1); ; line = append(line, b[0]) {
		_, err := r.Read(b)
		require.NoError(t, err)
		if b[0] == '\n' {
			return string(line)
		}
	}
}

func TestServesFile(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"-listen", "127.0.0.1:0", "-config", "destination.yaml", "-v"}, in, io.Discard)
		_ = in.CloseWithError(errors.Join(io.EOF, err)) // ends the wait for the line
		ended <- err
	}()
	match := regexp.MustCompile(`^serving 9 destinations of destination\.yaml on (127\.0\.0\.1:\d+)$`).FindStringSubmatch(firstLine(t, out))
	require.NotNil(t, match)

	conn, err := grpc.NewClient("passthrough:///"+match[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	patient, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()
	stream, err := pb.NewDestinationClient(conn).Get(patient, &pb.GetDestination{Path: "web.emojivoto.svc.cluster.local:80"})
	require.NoError(t, err)
	u, err := stream.Recv()
	require.NoError(t, err)
	require.Len(t, u.GetAdd().GetAddrs(), 2)

	cancel()
	require.NoError(t, <-ended)
	_, err = stream.Recv()
	require.Equal(t, codes.Unavailable, status.Code(err), err)
	require.NoError(t, conn.Close())
}

func TestInvalidArguments(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	require.NoError(t, os.WriteFile(bad, []byte("destinations:\n  a..b: {}\n  c: {exists: x}\n"), 0o600))
	for _, c := range []struct{ args, want string }{
		{"", "either -config or -kubernetes is required; see -help"},
		{"-nonsense", "flag provided but not defined: -nonsense; see -help"},
		{"-config destination.yaml -listen 127.0.0.1:none extra", `"extra": arguments must be flags; see -help`},
		{"-config destination.yaml -lease x", "-lease requires -kubernetes; see -help"},
		{"-kubernetes -default-inbound-policy x", `default inbound policy "x": must be deny, all-unauthenticated, `},
		{"-kubernetes -default-opaque-ports 25,x", `opaque ports "25,x": must be ports and ranges such as 25,4000-4100; see -help`},
		{"-kubernetes -default-opaque-ports 41-40", `opaque ports "41-40": must be ports and ranges such as 25,4000-4100; see -help`},
		{"-kubernetes -cluster-networks x", "-cluster-networks: "},
		{"-config none.yaml", "none.yaml"},
		{"-config " + bad, bad + `:3:15: destinations.c.exists "x": want true or false`},
		{"-config destination.yaml -listen 127.0.0.1:none", "listen tcp"},
	} {
		err := run(t.Context(), strings.Fields(c.args), io.Discard, io.Discard)
		require.ErrorContains(t, err, c.want, c.args)
	}
	var help bytes.Buffer
	require.ErrorIs(t, run(t.Context(), []string{"-help"}, io.Discard, &help), flag.ErrHelp)
	require.Contains(t, help.String(), "-config file")
}

// A configuration may come out of a pipe, which can be read once.
func TestServesPipe(t *testing.T) {
	text, err := os.ReadFile("destination.yaml")
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	_, err = w.Write(text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	path := fmt.Sprintf("/dev/fd/%d", r.Fd())
	if _, err := os.Stat(path); err != nil {
		t.Skip("a pipe has no name here: ", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"-listen", "127.0.0.1:0", "-config", path}, in, io.Discard)
		_ = in.CloseWithError(errors.Join(io.EOF, err))
		ended <- err
	}()
	require.Contains(t, firstLine(t, out), "serving 9 destinations of "+path)
	cancel()
	require.NoError(t, <-ended)
}
