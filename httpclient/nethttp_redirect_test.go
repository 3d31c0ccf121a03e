package httpclient_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptrace"
	"strconv"
	"strings"
)

// redirectBehaviors are about redirects and cookies, which http.Client handles above the round tripper.
var redirectBehaviors = map[string]behavior{
	"redirects": {
		tests: "ClientRedirects ClientRedirectsContext PostRedirects DeleteRedirects ClientRedirectUseResponse ClientRedirectNoLocation " +
			"ClientRedirect308NoGetBody ClientRedirectTypes RedirectGetBody Referer ClientRedirectEatsBody_h1",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				q := r.URL.Query()
				if left, _ := strconv.Atoi(q.Get("left")); left > 0 {
					status, _ := strconv.Atoi(q.Get("status"))
					if q.Get("location") != "none" {
						w.Header().Set("Location", fmt.Sprintf("/?status=%d&left=%d", status, left-1))
					}
					w.WriteHeader(status)
					return
				}
				echo(w, r)
			}).URL
			c := s.client(settings{})
			for _, method := range []string{"GET", "HEAD", "POST", "PUT", "DELETE"} {
				for _, status := range []int{301, 302, 303, 307, 308} {
					var body io.Reader
					if method == "POST" || method == "PUT" {
						body = strings.NewReader("text")
					}
					req := s.request(method, fmt.Sprintf("%s/?status=%d&left=2", url, status), body)
					rsp, err := c.Do(req)
					if s.see(method, status, kind(err)); err == nil {
						rsp.Request.Header.Del("Referer") // it has the port
						s.see(rsp.Request.Method, rsp.Request.URL.RawQuery, rsp.Request.Response != nil)
						s.seeBody(rsp, nil)
					}
				}
			}
			s.get(c, url+"/?status=302&left=1&location=none")
			s.do(c, s.request(http.MethodPost, url+"/?status=308&left=1", io.NopCloser(strings.NewReader("text"))))
			_, err := c.Do(s.request(http.MethodGet, url+"/?status=302&left=30", nil))
			s.see(err != nil)
			c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			s.get(c, url+"/?status=302&left=1")
			c.CheckRedirect = func(*http.Request, []*http.Request) error { return errStop }
			rsp, err := c.Do(s.request(http.MethodGet, url+"/?status=302&left=1", nil))
			s.see(kind(err), rsp != nil)
			var reused []bool
			req := s.request(http.MethodGet, url+"/?status=302&left=1", nil)
			s.do(s.client(settings{}), req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
				GotConn: func(info httptrace.GotConnInfo) { reused = append(reused, info.Reused) },
			})))
			s.see(reused)
			ctx, cancel := context.WithCancel(s.Context())
			c.CheckRedirect = func(*http.Request, []*http.Request) error { cancel(); return nil }
			_, err = c.Do(s.request(http.MethodGet, url+"/?status=302&left=1", nil).WithContext(ctx))
			s.see(kind(err))
		},
	},
	"redirects to another host": {
		tests: "ClientCopyHeadersOnRedirect ClientCopyHostOnRedirect ClientStripHeadersOnRepeatedRedirect ClientStripHeadersOnPostToGetRedirect",
		run: func(s *side) {
			away := s.serve(echo)
			here := s.serve(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/" {
					_, _ = io.WriteString(w, strings.Repeat("x", 1000))
					return
				}
				status, _ := strconv.Atoi(strings.Trim(r.URL.Path, "/"))
				http.Redirect(w, r, strings.Replace(away.URL, "127.0.0.1", r.Host[:strings.LastIndex(r.Host, ":")], 1), status)
			})
			c := s.client(settings{insecure: true})
			for _, host := range []string{"127.0.0.1", "localhost"} {
				for _, status := range []int{302, 307} {
					req := s.request(http.MethodPost, fmt.Sprintf("%s/%d", here.URL, status), strings.NewReader("text"))
					req.Header.Set("Authorization", "secret")
					req.Header.Set("Cookie", "a=b")
					req.Header.Set("X-Other", "kept")
					req.Host = host + req.URL.Host[strings.LastIndex(req.URL.Host, ":"):]
					rsp, err := c.Do(req)
					if s.see(kind(err)); err == nil {
						text, _ := io.ReadAll(rsp.Body)
						_ = rsp.Body.Close()
						for _, field := range []string{"secret", "a=b", "kept"} {
							s.see(host, status, field, strings.Contains(string(text), field))
						}
					}
				}
			}
		},
	},
	"cookies": {
		tests: "ClientSendsCookieFromJar RedirectCookiesJar JarCalls HostMismatchCookies ClientAltersCookiesOnRedirect",
		run: func(s *side) {
			url := s.serve(func(w http.ResponseWriter, r *http.Request) {
				n := len(r.Cookies())
				http.SetCookie(w, &http.Cookie{Name: "c" + strconv.Itoa(n), Value: "v"})
				http.SetCookie(w, &http.Cookie{Name: "other", Value: "v", Domain: "other.example"})
				if n < 3 {
					http.Redirect(w, r, "/again", http.StatusFound)
					return
				}
				fmt.Fprint(w, r.Header["Cookie"])
			}).URL
			c := s.client(settings{})
			jar, err := cookiejar.New(nil)
			s.see(kind(err))
			c.Jar = jar
			rsp, err := c.Do(s.request(http.MethodGet, url, nil))
			s.seeBody(rsp, err)
			req := s.request(http.MethodGet, url, nil)
			req.AddCookie(&http.Cookie{Name: "c0", Value: "own"})
			rsp, err = c.Do(req)
			s.seeBody(rsp, err)
		},
	},
}
