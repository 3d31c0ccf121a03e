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
}

func start(t *testing.T, args ...string) *started {
	t.Helper()
	profile := filepath.Join(t.TempDir(), "gateway.yaml")
	text, err := os.ReadFile("gateway.yaml")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(profile, text, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		own := []string{"-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0", "-profile", profile}
		ended <- run(ctx, append(own, args...), in, io.Discard)
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	said := regexp.MustCompile(`^clients: (http://\S+)/books  admin: (http://\S+)\n$`).FindStringSubmatch(line)
	require.NotNil(t, said, line)
	transport := &http.Transport{}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		cancel()
		require.NoError(t, <-ended)
	})
	return &started{clients: said[1], admin: strings.TrimSuffix(said[2], "/"), profile: profile, client: client}
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
	assert.Contains(t, body, "there is /books")

	versions := make(map[string]int)
	for range 200 {
		versions[s.version(t)]++
	}
	assert.InDelta(t, 20, versions["v2"], 19, "one of ten")

	for range 20 { // every other one fails at the backend
		status, _ = s.get(t, http.MethodGet, s.clients+"/books/flaky", token)
		assert.Equal(t, http.StatusOK, status)
	}
	status, _ = s.get(t, http.MethodGet, s.clients+"/books/slow", token)
	assert.Equal(t, http.StatusGatewayTimeout, status)

	refused := 0
	for range 20 {
		if status, _ = s.get(t, http.MethodPost, s.clients+"/books", token); status == http.StatusTooManyRequests {
			refused++
		}
	}
	assert.Positive(t, refused, "five a second")
}

func TestFileIsFollowed(t *testing.T) {
	s := start(t)
	text, err := os.ReadFile(s.profile)
	require.NoError(t, err)
	all := strings.ReplaceAll(strings.ReplaceAll(string(text), "books-v1.example:80: 90", "books-v1.example:80: 0"), "80: 10", "80: 1")
	require.NoError(t, os.WriteFile(s.profile+".new", []byte(all), 0o600))
	require.NoError(t, os.Rename(s.profile+".new", s.profile))
	require.Eventually(t, func() bool {
		for range 20 {
			if s.version(t) != "v2" {
				return false
			}
		}
		return true
	}, 20*time.Second, 50*time.Millisecond)

	require.NoError(t, os.WriteFile(s.profile, []byte("routes: nonsense"), 0o600))
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
	assert.Contains(t, body, "verdict=chosen")
	assert.Regexp(t, `auth[\s\S]*explain[\s\S]*profiles[\s\S]*balance[\s\S]*endpoint`, body)
}

func TestBadFlagsSaySo(t *testing.T) {
	for want, args := range map[string][]string{
		`"books" has no address: want name:port=ip:port`: {"-backend", "books"},
		"flag provided but not defined":                  {"-nonsense"},
	} {
		require.ErrorContains(t, run(t.Context(), args, io.Discard, io.Discard), want)
	}
	require.Error(t, run(t.Context(), []string{"-backend", "b:80=nowhere"}, io.Discard, io.Discard))
}
