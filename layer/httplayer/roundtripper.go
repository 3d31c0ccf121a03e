package httplayer

import (
	"errors"
	"net/http"
)

// RoundTripper adapts svc to the transport of an [http.Client]. It calls svc
// with the context of the request and returns its errors unchanged. It closes
// the body of a rejected request; svc closes that of a request that it served.
// It is safe for concurrent use, as svc is. It panics if svc is nil.
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
		// A response made by hand may have a nil body, one of net/http may not.
		rsp.Body = http.NoBody
	}
	return rsp, nil
}
