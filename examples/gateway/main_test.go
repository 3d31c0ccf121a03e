package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started is a gateway that runs until the test ends.
type started struct {
	clients, admin string
	profile        string
	client         *http.Client
	log            *said
	end            func() // tells the gateway to
}

// said is what was logged.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// until waits for ok, which may require things: it is called by the goroutine of
// the test.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	late := time.After(3 * time.Minute)
	for !ok() {
		select {
		case <-late:
			require.Fail(t, "it does not come")
		case <-time.After(time.Millisecond):
		}
	}
}

func start(t *testing.T, args ...string) *started {
	t.Helper()
	return startWith(t, strings.NewReplacer(), args...)
}

// startWith does it with other words in the file.
func startWith(t *testing.T, words *strings.Replacer, args ...string) *started {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "gateway.yaml")
	text, err := os.ReadFile("gateway.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(profile, []byte(words.Replace(string(text))), 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	log := &said{}
	go func() {
		own := []string{"-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-profile", profile}
		ended <- run(ctx, append(own, args...), in, log)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	where := regexp.MustCompile(`^clients: (http://\S+)/books  admin: (http://\S+)\n$`).FindStringSubmatch(line)
	require.NotNil(t, where, line)
	transport := &http.Transport{}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		require.NoError(t, <-ended)
	})
	return &started{clients: where[1], admin: strings.TrimSuffix(where[2], "/"), profile: profile, client: client, log: log, end: cancel}
}

// get returns the status and the body.
func (s *started) get(t *testing.T, method, url string, header ...string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	require.NoError(t, err)
	for _, h := range header {
		key, value, _ := strings.Cut(h, ": ")
		req.Header.Set(key, value)
	}
	rsp, err := s.client.Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return rsp.StatusCode, string(text)
}

const token = "Authorization: Bearer sesame"

func (s *started) version(t *testing.T) string {
	t.Helper()
	status, body := s.get(t, http.MethodGet, s.clients+"/books", token)
	require.Equal(t, http.StatusOK, status)
	var answer struct{ Version string }
	require.NoError(t, json.Unmarshal([]byte(body), &answer))
	return answer.Version
}

func TestGateway(t *testing.T) {
	s := start(t)
	status, _ := s.get(t, http.MethodGet, s.clients+"/books")
	assert.Equal(t, http.StatusUnauthorized, status)
	status, body := s.get(t, http.MethodGet, s.clients+"/shelves", token)
	assert.Equal(t, http.StatusNotFound, status)
	assert.Contains(t, body, "/books does, and requires a token")

	versions := make(map[string]int)
	for range 200 {
		versions[s.version(t)]++
	}
	assert.InDelta(t, 25, versions["v2"], 24.5, "one of ten: by chance, one run of a billion is beyond that")

	for range 20 { // every other one fails at the backend
		status, _ = s.get(t, http.MethodGet, s.clients+"/books/flaky", token)
		assert.Equal(t, http.StatusOK, status)
	}
	status, _ = s.get(t, http.MethodGet, s.clients+"/books/slow", token)
	assert.Equal(t, http.StatusGatewayTimeout, status)
}

// What is beyond the rate is refused, however slow who asks may be.
func TestRateLimit(t *testing.T) {
	s := startWith(t, strings.NewReplacer("rate: 5", "rate: {perSecond: 0.0001, burst: 5}"))
	for n := range 7 {
		want := http.StatusCreated
		if n >= 5 {
			want = http.StatusTooManyRequests
		}
		status, body := s.get(t, http.MethodPost, s.clients+"/books", token)
		require.Equal(t, want, status, "%d: %s", n, body)
	}
}

func TestProfileReload(t *testing.T) {
	s := start(t)
	text, err := os.ReadFile(s.profile)
	require.NoError(t, err)
	all := strings.ReplaceAll(strings.ReplaceAll(string(text), "books-v1.example:80: 90", "books-v1.example:80: 0"), "80: 10", "80: 1")
	s.write(t, all)
	until(t, func() bool {
		for range 20 {
			if s.version(t) != "v2" {
				return false
			}
		}
		return true
	})

	s.write(t, "routes: nonsense")
	until(t, func() bool { return strings.Contains(s.log.String(), "stays current") })
	for range 20 {
		require.Equal(t, "v2", s.version(t), "the last good one stays")
	}
}

func TestAdminPageShowsTheTreeAndExplanations(t *testing.T) {
	s := start(t)
	_, body := s.get(t, http.MethodGet, s.admin+"/")
	assert.Contains(t, body, "Send a request with the header")
	s.get(t, http.MethodGet, s.clients+"/books", token, "X-Explain: 1")
	_, body = s.get(t, http.MethodGet, s.admin+"/")
	assert.Contains(t, body, "GET /books")
	assert.Contains(t, body, "result=chosen")
	assert.Regexp(t, `auth[\s\S]*explain[\s\S]*profiles[\s\S]*balance[\s\S]*endpoint`, body)
}

func TestInvalidFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`"books": must be name:port=ip:port`:                           {"-backend", "books"},
		"gateway: flag provided but not defined: -nonsense; see -help": {"-nonsense"},
		"gateway: -key must not be empty; see -help":                   {"-key", ""},
		`gateway: "extra": arguments must be flags; see -help`:         {"-listen", "127.0.0.1:none", "extra"},
	} {
		require.ErrorContains(t, run(t.Context(), args, io.Discard, io.Discard), want)
	}
	require.Error(t, run(t.Context(), []string{"-backend", "b:80=nowhere"}, io.Discard, io.Discard))
}
