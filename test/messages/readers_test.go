package messages

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// reader is a parser that reads a message that a proxy forwarded.
type reader interface {
	request(raw []byte) (meaning, error)
	response(raw []byte, method string) (meaning, error)
}

// netHTTP reads messages with net/http.
type netHTTP struct{}

func (netHTTP) request(raw []byte) (meaning, error) {
	in := bufio.NewReader(bytes.NewReader(raw))
	r, err := http.ReadRequest(in)
	if err != nil {
		return meaning{}, err
	}
	m := meaning{Method: r.Method, Target: r.RequestURI, Authority: r.Host, Whole: true, Fields: lower(r.Header)}.normalized()
	body, err := io.ReadAll(r.Body)
	m.Body, m.Trailers = string(body), lower(r.Trailer)
	return m, errors.Join(err, rest(in))
}

func (netHTTP) response(raw []byte, method string) (meaning, error) {
	in := bufio.NewReader(bytes.NewReader(raw))
	var r *http.Response
	var err error
	for r == nil || r.StatusCode/100 == 1 && r.StatusCode != http.StatusSwitchingProtocols {
		if r, err = http.ReadResponse(in, &http.Request{Method: method}); err != nil { //nolint:bodyclose // see below
			return meaning{}, err
		}
	}
	_, reason, _ := strings.Cut(r.Status, " ")
	m := meaning{Status: r.StatusCode, Reason: reason, Fields: lower(r.Header)}
	body, err := io.ReadAll(r.Body)
	m.Body, m.Trailers, m.Whole = string(body), lower(r.Trailer), err == nil && rest(in) == nil
	return m, nil
}

// rest returns an error if there is more input.
func rest(in *bufio.Reader) error {
	if b, _ := io.ReadAll(in); len(b) > 0 {
		return fmt.Errorf("%d bytes are left", len(b))
	}
	return nil
}

func lower(header http.Header) map[string][]string {
	fields := make(map[string][]string)
	for name, values := range header {
		if len(values) > 0 { // net/http returns announced trailers without values
			fields[strings.ToLower(name)] = values
		}
	}
	return without(fields)
}

// h11 reads messages with the Python library h11.
type h11 struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

// pythonWithH11 returns a Python that has h11, from .ci/messages.sh or PATH, or "".
func pythonWithH11() string {
	dir := os.Getenv("GOTOWER_MESSAGES")
	if cache, err := os.UserCacheDir(); dir == "" && err == nil {
		dir = filepath.Join(cache, "gotower-messages")
	}
	for _, python := range []string{filepath.Join(dir, "bin", "python3"), "python3"} {
		if exec.Command(python, "-c", "import h11").Run() == nil {
			return python
		}
	}
	return ""
}

func newH11(t testing.TB) *h11 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), pythonWithH11(), filepath.Join("testdata", "reader.py"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	return &h11{in: in, out: bufio.NewReader(out)}
}

func (h *h11) read(kind string, raw []byte) (meaning, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := fmt.Fprintf(h.in, "%s\n%d\n%s", kind, len(raw), raw); err != nil {
		return meaning{}, err
	}
	line, err := h.out.ReadBytes('\n')
	if err != nil {
		return meaning{}, err
	}
	var result struct {
		Messages []meaning
		Rest     string
		Error    string
	}
	if err := json.Unmarshal(line, &result); err != nil {
		return meaning{}, err
	}
	switch {
	case result.Error != "":
		return meaning{}, errors.New(result.Error)
	case len(result.Messages) != 1:
		return meaning{}, fmt.Errorf("%d messages", len(result.Messages))
	case result.Rest != "":
		return meaning{}, fmt.Errorf("the rest %.60q", result.Rest)
	}
	m := result.Messages[0]
	m.Whole = true
	// JSON contains the bytes as characters.
	m.Target, m.Reason, m.Body = latin1(m.Target), latin1(m.Reason), latin1(m.Body)
	for _, fields := range []map[string][]string{m.Fields, m.Trailers} {
		for name, values := range fields {
			for i := range values {
				fields[name][i] = latin1(values[i])
			}
		}
	}
	if hosts := m.Fields["host"]; len(hosts) > 0 {
		m.Authority = hosts[0]
	}
	m = m.normalized()
	m.Fields, m.Trailers = without(m.Fields), without(m.Trailers)
	return m, nil
}

// latin1 returns the bytes whose values are s's characters.
func latin1(s string) string {
	b := make([]byte, 0, len(s))
	for _, c := range s {
		b = append(b, byte(c))
	}
	return string(b)
}

func (h *h11) request(raw []byte) (meaning, error) { return h.read("request", raw) }

func (h *h11) response(raw []byte, method string) (meaning, error) {
	return h.read("response "+method, raw)
}
