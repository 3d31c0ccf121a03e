package httplayer

import (
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// formRequest is a POST of a file.
func formRequest(t testing.TB, url string) *http.Request {
	t.Helper()
	var body strings.Builder
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("f", "f.txt")
	require.NoError(t, err)
	say(part, strings.Repeat("x", 1<<20))
	require.NoError(t, form.Close())
	req := request(t, http.MethodPost, url, body.String())
	req.Header.Set("Content-Type", form.FormDataContentType())
	return req
}

// relabelled is a layer that hands on a request of its own.
func relabelled(r *http.Request) *http.Request {
	out := fork(r)
	out.Header.Set("X-Label", "x")
	return out
}

// net/http stores files of a form on disk, and removes them by the request that
// it made, of which a handler may see a copy (golang/go#58809).
func TestFormFilesAreRemoved(t *testing.T) {
	logged := AccessLog(io.Discard, JSONLog, nil)
	context := Middleware(NewStack().Timeout(time.Minute).Layer())
	edited := Middleware(NewStack().MapRequest(relabelled).Layer())
	byServer := func(t *testing.T, h http.Handler) string { return servingBy(t, h).addr }
	byOther := func(t *testing.T, h http.Handler) string { return serve(t, h) }
	for name, tt := range map[string]struct {
		served func(t *testing.T, h http.Handler) string
		wrap   func(http.Handler) http.Handler
	}{
		"AccessLog":                     {byOther, logged},
		"Middleware, context":           {byOther, context},
		"Middleware, request":           {byOther, edited},
		"Middleware, both":              {byOther, Middleware(NewStack().MapRequest(relabelled).Timeout(time.Minute).Layer())},
		"Server":                        {byServer, func(h http.Handler) http.Handler { return h }},
		"Server, AccessLog, Middleware": {byServer, func(h http.Handler) http.Handler { return logged(context(edited(h))) }},
	} {
		for version, two := range map[string]bool{"http1": false, "h2": true} {
			t.Run(name+" "+version, func(t *testing.T) {
				files := make(chan string, 1)
				addr := tt.served(t, tt.wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					files <- formFile(t, r)
				})))
				rsp, err := client(t, two).Do(formRequest(t, "http://"+addr))
				require.NoError(t, err)
				read(t, rsp)
				file := <-files
				require.NotEmpty(t, file)
				assert.Eventually(t, func() bool { _, err := os.Stat(file); return os.IsNotExist(err) }, patience, time.Millisecond)
			})
		}
	}
}

// formFile has net/http keep the form on disk, and returns where.
func formFile(t *testing.T, r *http.Request) (name string) {
	if !assert.NoError(t, r.ParseMultipartForm(1)) {
		return ""
	}
	f, err := r.MultipartForm.File["f"][0].Open()
	if !assert.NoError(t, err) {
		return ""
	}
	defer f.Close()
	onDisk, ok := f.(*os.File)
	if !assert.True(t, ok) {
		return ""
	}
	return onDisk.Name()
}

// net/http's HTTP/2 does so after a panic, too.
func TestFormFilesRemovedAfterPanic(t *testing.T) {
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"AccessLog":           AccessLog(io.Discard, JSONLog, nil),
		"Middleware, context": Middleware(NewStack().Timeout(time.Minute).Layer()),
		"Middleware, request": Middleware(NewStack().MapRequest(relabelled).Layer()),
	} {
		t.Run(name, func(t *testing.T) {
			mux := http.NewServeMux()
			mux.HandleFunc("/", func(_ http.ResponseWriter, r *http.Request) {
				formFile(t, r)
				panic("odd")
			})
			received := formRequest(t, "/")
			assert.PanicsWithValue(t, "odd", func() { wrap(mux).ServeHTTP(httptest.NewRecorder(), received) })
			assert.Equal(t, "/", received.Pattern)
			if assert.NotNil(t, received.MultipartForm) {
				assert.NoError(t, received.MultipartForm.RemoveAll())
			}
		})
	}
}

// The parsed form of a received request remains, if a layer forwards a request without the form.
func TestFormOfReceivedRequestStays(t *testing.T) {
	received := formRequest(t, "/")
	formFile(t, received)
	form := received.MultipartForm
	another := func(*http.Request) *http.Request { return request(t, http.MethodGet, "/", "") }
	Middleware(NewStack().MapRequest(another).Layer())(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), received)
	assert.Same(t, form, received.MultipartForm)
	assert.NoError(t, form.RemoveAll())
}
