package httplayer

import (
	"errors"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer/internal/message"
)

// RoundTripper adapts svc to an [http.RoundTripper], such as the Transport of an
// [http.Client]. The result calls svc with the context of the request, and returns the
// errors of svc unchanged. If svc returns an error, the result closes the body of the
// request. It is safe for concurrent use. A nil svc panics.
func RoundTripper(svc Service) http.RoundTripper {
	if svc == nil {
		panic("httplayer: nil service")
	}
	return roundTripper{svc}
}

type roundTripper struct{ svc Service }

var errNoResponse = errors.New("httplayer: the service returned neither a response nor an error")

func (t roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	rsp, err := t.svc.Call(req.Context(), req)
	if err == nil && rsp == nil {
		err = errNoResponse
	}
	if err != nil {
		message.CloseBody(req)
		return nil, err
	}
	if rsp.Body == nil {
		// A response made by hand may have a nil body, one of net/http may not.
		rsp.Body = http.NoBody
	}
	return rsp, nil
}
