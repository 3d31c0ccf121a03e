package httplayer

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
)

// ErrorHandler writes the response of a [Handler] or [Middleware] for an error or a
// rejection. At the call, w has the status of [StatusFromError] and the headers for the
// error, such as Retry-After and the Header of a [StatusError]. The function may change the
// status by WriteHeader, change the headers, and write a body. The response is kept in
// memory until the function returns. The function must not use r afterwards.
//
// An ErrorHandler is called concurrently. It is not called for gRPC requests, because their
// error responses have no body.
type ErrorHandler func(w http.ResponseWriter, r *http.Request, err error)

// WithErrorHandler sets the function that writes error responses. The default is [Problem].
// Nil means responses without a body.
func WithErrorHandler(f ErrorHandler) HandlerOption {
	return func(h *handler) { h.onError = f }
}

// Problem is the default [ErrorHandler]. If err is a [StatusError] with a Body, it writes
// that body. Otherwise it writes problem details (RFC 9457) with the media type
// application/problem+json:
//
//	{"type":"about:blank","title":"Service Unavailable","status":503}
//
// The Detail of a StatusError is added as the member detail. The text of err is not sent,
// because it has addresses of endpoints.
func Problem(w http.ResponseWriter, _ *http.Request, err error) {
	status, _ := StatusFromError(err)
	problem := struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail,omitempty"`
	}{"about:blank", http.StatusText(status), status, ""}
	if chosen, ok := errors.AsType[*StatusError](err); ok {
		if chosen.Body != nil {
			_, _ = w.Write(chosen.Body)
			return
		}
		problem.Detail = chosen.Detail
	}
	w.Header().Set("Content-Type", "application/problem+json")
	_ = json.NewEncoder(w).Encode(problem) //nolint:errchkjson // w is in memory
}

// describeError calls the ErrorHandler for err. The ErrorHandler may change the status and
// the headers of the error response rsp. The body that it writes becomes the body of rsp.
func (h *handler) describeError(rsp *http.Response, r *http.Request, err error) {
	w := &bodyRecorder{rsp: rsp}
	if h.onError != nil {
		h.onError(w, r, err)
	}
	rsp.ContentLength = int64(w.body.Len())
	rsp.Header.Set("Content-Length", strconv.Itoa(w.body.Len()))
	if w.body.Len() > 0 && r.Method != http.MethodHead {
		rsp.Body = io.NopCloser(&w.body)
	}
}

// bodyRecorder is the ResponseWriter that an ErrorHandler receives. The ErrorHandler writes
// to the status and headers of the field rsp, and to the field body.
type bodyRecorder struct {
	rsp  *http.Response
	body bytes.Buffer
}

func (w *bodyRecorder) Header() http.Header { return w.rsp.Header }

// WriteHeader is part of [http.ResponseWriter]. It ignores a status outside 200 to 999.
func (w *bodyRecorder) WriteHeader(status int) {
	if status >= http.StatusOK && status <= 999 {
		w.rsp.StatusCode = status
	}
}

func (w *bodyRecorder) Write(p []byte) (int, error) { return w.body.Write(p) }
