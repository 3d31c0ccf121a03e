package httplayer

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strconv"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer/internal/around"
)

// StickySession returns a layer that sends the requests of a session to the same endpoint.
// The balancer below must use consistent hashing. A random number in the cookie with the
// given name identifies the session. The response to a request without a valid cookie sets
// the cookie, which browsers delete when they are closed. The cookie has Path=/, HttpOnly,
// SameSite=Lax and, for https, Secure. If the endpoint is removed or not ready, the session
// continues at another endpoint.
//
// Admission: every request is admitted. Ready is forwarded.
//
// Cancellation: not changed.
//
// Body: not touched.
//
// Errors: passed unchanged.
//
// Cost: parsing the cookies, and a context.
//
// StickySession panics if the name is not valid for a cookie.
func StickySession(cookie string) Layer {
	if (&http.Cookie{Name: cookie}).Valid() != nil { //nolint:gosec // not sent
		panic("httplayer: StickySession: cookie name is " + strconv.Quote(cookie) + ", must be a token")
	}
	// The cookie has the session's key for layer.WithAffinity, in hexadecimal digits. A client without one gets it with
	// the response.
	call := func(ctx context.Context, req *http.Request, next Service) (*http.Response, error) {
		if c, err := req.Cookie(cookie); err == nil {
			if key, err := strconv.ParseUint(c.Value, 16, 64); err == nil {
				return next.Call(layer.WithAffinity(ctx, key), req)
			}
		}
		// The client has no session yet, or sent a cookie that is not one of these.
		key := rand.Uint64()
		rsp, err := next.Call(layer.WithAffinity(ctx, key), req)
		if err == nil && rsp != nil {
			c := http.Cookie{ //nolint:gosec // Secure if the client uses TLS
				Name: cookie, Value: strconv.FormatUint(key, 16), Path: "/", HttpOnly: true,
				SameSite: http.SameSiteLaxMode, Secure: HTTP{}.Scheme(req) == "https",
			}
			headerOf(rsp).Add("Set-Cookie", c.String())
		}
		return rsp, err
	}
	return around.Layer("sticky_session", layer.State{{Key: "cookie", Value: cookie}}, call)
}
