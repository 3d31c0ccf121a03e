package httplayer

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestHandlerFlushes(t *testing.T) {
	// Each piece arrives before the next one is written.
	next := make(chan struct{})
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "6")
		}
		w.WriteHeader(http.StatusOK)
		flush(w)
		for i := range 3 {
			<-next
			sayf(w, "%d,", i)
			flush(w)
		}
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, path := range []string{"/length", "/chunks"} {
			rsp, err := c.Do(request(t, "GET", base+path, ""))
			require.NoError(t, err, "the header is flushed, too")
			for i := range 3 {
				next <- struct{}{}
				piece := make([]byte, 2)
				_, err := io.ReadFull(rsp.Body, piece)
				require.NoError(t, err)
				assert.Equal(t, fmt.Sprintf("%d,", i), string(piece))
			}
			assert.Empty(t, read(t, rsp))
		}
	})
}

func TestHandlerFullDuplex(t *testing.T) {
	// The client waits for the reply to each message before it sends the next.
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fullDuplex(w)
		flush(w)
		words := bufio.NewScanner(r.Body)
		for words.Scan() {
			sayf(w, "<%s>\n", words.Text())
			flush(w)
		}
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		in, out := io.Pipe()
		req := request(t, "POST", base+"/", "")
		req.Body = in
		rsp, err := c.Do(req)
		require.NoError(t, err)
		answers := bufio.NewScanner(rsp.Body)
		for i := range 5 {
			sayf(out, "%d\n", i)
			require.True(t, answers.Scan())
			assert.Equal(t, fmt.Sprintf("<%d>", i), answers.Text())
		}
		out.Close()
		assert.False(t, answers.Scan())
		require.NoError(t, rsp.Body.Close())
	})
}

func TestHandlerLargeBodiesFullDuplex(t *testing.T) {
	t.Parallel()
	const size = 8 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fullDuplex(w)
		pipe(w, r.Body)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, length := range []int64{size, -1} {
			req := request(t, "POST", base+"/", "")
			req.Body, req.ContentLength = io.NopCloser(bytes.NewReader(data)), length
			rsp, err := c.Do(req)
			require.NoError(t, err)
			sum := sha256.New()
			n, err := io.Copy(sum, rsp.Body)
			require.NoError(t, err)
			assert.EqualValues(t, size, n)
			want := sha256.Sum256(data)
			assert.Equal(t, want[:], sum.Sum(nil))
			rsp.Body.Close()
		}
	})
}

func TestHandlerCancelsUpstream(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/body" {
			say(w, "half")
			flush(w)
		}
		arrived <- struct{}{}
		<-r.Context().Done()
		gone <- struct{}{}
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, path := range []string{"/head", "/body"} {
			ctx, cancel := context.WithCancel(t.Context())
			req := request(t, "GET", base+path, "").WithContext(ctx)
			errs := make(chan error, 1)
			go func() {
				rsp, err := c.Do(req)
				if err == nil {
					_, err = io.ReadAll(rsp.Body)
					rsp.Body.Close()
				}
				errs <- err
			}()
			<-arrived
			cancel()
			<-gone
			assert.ErrorIs(t, <-errs, context.Canceled)
		}
	})
}

func TestHandlerAbortsIncompleteResponse(t *testing.T) {
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/length" {
			w.Header().Set("Content-Length", "100")
		}
		say(w, "half")
		flush(w)
		panic(http.ErrAbortHandler)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		for _, path := range []string{"/length", "/chunks"} {
			rsp, err := c.Do(request(t, "GET", base+path, ""))
			if err != nil {
				continue // it broke off before the header was sent on
			}
			_, err = io.ReadAll(rsp.Body)
			assert.Error(t, err, "half a response was taken for all of it")
			rsp.Body.Close()
		}
	})
}

func TestHandlerUpgrade(t *testing.T) {
	// tests.md A11; layers in between must not take anything away.
	up := serve(t, http.HandlerFunc(switchToEcho))
	stack := NewStack().Limit(10).Timeout(1 << 40)
	proxy := serve(t, Handler(stack.Service(endpoint(t, up))))
	conn, err := net.Dial("tcp", proxy)
	require.NoError(t, err)
	defer conn.Close()
	say(conn, "GET /chat HTTP/1.1\r\nHost: web\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	in := bufio.NewReader(conn)
	rsp, err := http.ReadResponse(in, nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, rsp.StatusCode)
	assert.Equal(t, "echo", rsp.Header.Get("Upgrade"))
	for i := range 5 {
		sayf(conn, "word %d\n", i)
		got, err := in.ReadString('\n')
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprintf("word %d\n", i), got)
	}
	// Ending one direction leaves the other.
	say(conn, "the last")
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	got, err := io.ReadAll(in)
	require.NoError(t, err)
	assert.Equal(t, "the last", string(got))
}

func TestHandlerUpgradeRejected(t *testing.T) {
	up := serve(t, http.HandlerFunc(switchToEcho))
	proxy := serve(t, Handler(endpoint(t, up)))
	req := request(t, "GET", "http://"+proxy+"/", "")
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "something else")
	rsp, err := client(t, false).Do(req)
	require.NoError(t, err)
	assert.Equal(t, http.StatusUpgradeRequired, rsp.StatusCode)
	assert.Equal(t, "no upgrade\n", read(t, rsp))
}

func TestHandlerEarlyResponse(t *testing.T) {
	// The upstream responds before the body arrives, because it does not need it.
	up := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		w.WriteHeader(http.StatusRequestEntityTooLarge)
	})
	hops(t, up, func(t *testing.T, c *http.Client, base string) {
		in, out := io.Pipe()
		defer out.Close()
		req := request(t, "POST", base+"/", "")
		req.Body = in
		rsp, err := c.Do(req)
		require.NoError(t, err)
		assert.Equal(t, http.StatusRequestEntityTooLarge, rsp.StatusCode)
		rsp.Body.Close()
	})
}

func TestHandlerClientAborts(t *testing.T) {
	// Half a request body must not reach the upstream as a whole one.
	result := make(chan error, 1)
	up := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		result <- err
	}))
	for _, opts := range [][]EndpointOption{{WithHTTP1()}, {WithHTTP2()}} {
		proxy := serve(t, Handler(endpoint(t, up, opts...)))
		for _, framing := range []string{"Content-Length: 100", "Transfer-Encoding: chunked"} {
			conn, err := net.Dial("tcp", proxy)
			require.NoError(t, err)
			sayf(conn, "POST / HTTP/1.1\r\nHost: web\r\n%s\r\n\r\n4\r\nhalf\r\n", framing)
			require.NoError(t, conn.Close())
			assert.Error(t, <-result)
		}
	}
}

func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("there is no curl on this machine")
	}
	up := serve(t, http.HandlerFunc(shapes))
	proxy := serve(t, Handler(endpoint(t, up)))
	run := func(t *testing.T, args ...string) string {
		t.Helper()
		args = append([]string{"--silent", "--show-error", "--noproxy", "*", "--max-time", "20"}, args...)
		out, err := exec.CommandContext(t.Context(), curl, args...).CombinedOutput()
		if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && bytes.Contains(out, []byte("nsupported")) {
			t.Skipf("this curl cannot: %s", out)
		}
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	for name, version := range map[string]string{
		"HTTP/1.0": "--http1.0", "HTTP/1.1": "--http1.1", "HTTP/2": "--http2-prior-knowledge",
	} {
		t.Run(name, func(t *testing.T) {
			got := run(t, version, "--include", "http://"+proxy+"/length")
			assert.True(t, strings.HasPrefix(got, name+" 200"), got)
			assert.True(t, strings.HasSuffix(got, "\r\n\r\nhello"), got)
			assert.Equal(t, "0,1,2,", run(t, version, "http://"+proxy+"/chunks"))
			assert.Equal(t, "a=b", run(t, version, "--data", "a=b", "http://"+proxy+"/echo"))
			got = run(t, version, "--head", "http://"+proxy+"/length")
			assert.Contains(t, strings.ToLower(got), "content-length: 5\r\n")
			if name != "HTTP/1.0" {
				got = run(t, version, "--include", "http://"+proxy+"/early")
				assert.Contains(t, got, " 103")
				big := strings.Repeat("x", 3<<20)
				cmd := exec.CommandContext(t.Context(), curl, "-sS", "--noproxy", "*", version, "-T", "-", "-X", "POST", "http://"+proxy+"/echo")
				cmd.Stdin = strings.NewReader(big)
				out, err := cmd.Output()
				require.NoError(t, err)
				assert.Len(t, out, len(big))
			}
		})
	}
	t.Run("h2c upgrade is answered in HTTP/1.1", func(t *testing.T) { // tests.md A13
		got := run(t, "--http2", "--include", "http://"+proxy+"/length")
		assert.True(t, strings.HasPrefix(got, "HTTP/1.1 200"), got)
	})
}
