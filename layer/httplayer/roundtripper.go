package httplayer

import (
	"errors"
	"net/http"
)

// RoundTripper returns svc as the transport of an [http.Client] (see
// [http.RoundTripper]). It calls svc with the context of the request, returns
// its errors as they are, and does not change the request. A request that svc
// did not take has its body closed here; closing that of one it served is up
// to svc. It is safe for concurrent use, as svc is.
// A nil svc panics.
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
		closeBody(req)
		return nil, err
	}
	if rsp.Body == nil {
		// Whoever makes a response by hand may do without a body; readers of
		// net/http's responses may not.
		rsp.Body = http.NoBody
	}
	return rsp, nil
}
