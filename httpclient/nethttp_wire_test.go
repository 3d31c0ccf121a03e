package httpclient_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
)

// wireBehaviors are about servers of HTTP/1.1 that a test writes by hand.
var wireBehaviors = map[string]behavior{
	"responses": {
		tests: "MissingStatusNoPanic NoBodyOnChunked304Response InvalidHeaderResponse TransportRejectsSignInContentLength IdentityTransferEncoding " +
			"TransportReading100Continue TransportLimits1xxResponses " +
			"TransportIssue10457 Issue3644 BadResponseAfterReadingBody",
		modes: "http",
		run: func(s *side) {
			c := s.client(settings{})
			for _, response := range []string{
				"unknown\r\n\r\n",
				"HTTP/1.1 \r\n\r\n",
				"HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n",
				"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nTransfer-Encoding: unknown\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
				"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhel",
				"HTTP/1.1 200 OK\r\nwrong line\r\nContent-Length: 0\r\n\r\n",
				"HTTP/1.1 200 OK\r\n: value\r\nContent-Length: 0\r\n\r\n",
				"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nX-End: close\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nContent-Length: 10\r\nConnection: close\r\n\r\nhello",
				"HTTP/1.1 1000 Large\r\nContent-Length: 0\r\n\r\n",
				"HTTP/1.1 999 Unknown\r\nContent-Length: 5\r\n\r\nhello",
				"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
				strings.Repeat("HTTP/1.1 123 Some\r\nX: "+strings.Repeat("x", 1000)+"\r\n\r\n", 500) + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
				strings.Repeat("HTTP/1.1 124 Some\r\nX: "+strings.Repeat("x", 1000)+"\r\n\r\n", 12_000) + "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
				"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + strings.Repeat("large", 100_000),
				"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 11<<20) + "\r\nContent-Length: 5\r\n\r\nhello",
				"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
				"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Encoding: gzip\r\n\r\n",
			} {
				s.named(fmt.Sprintf("%.60q", response), func() { s.get(c, s.answers(response)) })
			}
		},
	},
	"lost connections": {
		tests: "TransportServerClosingUnexpectedly TransportRemovesDeadIdleConnections TransportRemovesConnsAfterBroken RetryRequestsOnError " +
			"StressSurpriseServerCloses TransportIdleConnRacesRequest",
		modes: "http",
		run: func(s *side) {
			url := s.connections(func(conn net.Conn, in *bufio.Reader) {
				if req, err := http.ReadRequest(in); err == nil {
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n%s", map[string]string{"GET": "get"}[req.Method])
				}
			})
			c := s.client(settings{})
			for _, method := range []string{"GET", "HEAD", "GET"} { // with a body, net/http may fail to write it
				s.do(c, s.request(method, url, nil))
			}
			silent := s.connections(func(_ net.Conn, in *bufio.Reader) { _, _ = http.ReadRequest(in) })
			for _, method := range []string{"GET", "POST"} {
				_, err := c.Do(s.request(method, silent, nil))
				s.see(method, errors.Is(err, io.EOF))
			}
		},
	},
	"late failure": {
		tests: "TransportIgnores408",
		modes: "http",
		run: func(s *side) {
			var requests atomic.Int64
			url := s.connections(func(conn net.Conn, in *bufio.Reader) {
				for {
					if _, err := http.ReadRequest(in); err != nil {
						return
					}
					requests.Add(1)
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"+
						"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				}
			})
			c := s.client(settings{})
			for range 3 {
				s.get(c, url)
			}
			s.see(requests.Load())
		},
	},
	"early responses": {
		tests: "TransportPrefersResponseOverWriteError Issue3595 TransportNoReuseAfterEarlyResponse",
		modes: "http",
		run: func(s *side) {
			url := s.connections(func(conn net.Conn, in *bufio.Reader) {
				if req, err := http.ReadRequest(in); err == nil && req.Method == http.MethodGet {
					_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbar")
					return
				}
				_, _ = io.WriteString(conn, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\nfoo")
				_, _ = io.Copy(io.Discard, in)
			})
			c := s.client(settings{})
			in, out := io.Pipe()
			go func() { _, _ = io.WriteString(out, "first") }()
			rsp, err := c.Do(s.request(http.MethodPost, url, in))
			s.seeBody(rsp, err)
			s.get(c, url)
			_ = out.Close()
			_ = in.Close()
		},
	},
	"Expect": {
		tests: "TransportExpect100ContinueSent TransportExpect100Continue200ResponseNoConnClose TransportExpect100Continue200ResponseWithConnClose " +
			"TransportExpect100Continue500ResponseNoConnClose TransportExpect100Continue500ResponseTimeout",
		modes: "http",
		run: func(s *side) {
			for _, first := range []string{
				"HTTP/1.1 100 Continue\r\n\r\n", "", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno",
				"HTTP/1.1 500 Wrong\r\nContent-Length: 2\r\n\r\nno", "HTTP/1.1 417 No\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno",
			} {
				url := s.connections(func(conn net.Conn, in *bufio.Reader) {
					req, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.WriteString(conn, first)
					if first != "" && !strings.Contains(first, "100") {
						return
					}
					text, _ := io.ReadAll(req.Body)
					fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
				})
				req := s.request(http.MethodPost, url, strings.NewReader("text"))
				req.Header.Set("Expect", "100-continue")
				s.do(s.client(settings{}), req)
			}
		},
	},
	"upgrades": {
		tests: "TransportTreat101Terminal H12_WebSocketUpgrade TransportResponseBodyWritableOnProtocolSwitch",
		modes: "http",
		run: func(s *side) {
			url := s.connections(func(conn net.Conn, in *bufio.Reader) {
				req, err := http.ReadRequest(in)
				if err != nil {
					return
				}
				fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", req.Header.Get("Upgrade"))
				line, _ := in.ReadString('\n')
				_, _ = io.WriteString(conn, "got "+line)
			})
			req := s.request(http.MethodGet, url, nil)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "lines")
			rsp, err := s.client(settings{}).Do(req)
			if s.see(kind(err)); err != nil {
				return
			}
			defer rsp.Body.Close()
			conn, ok := rsp.Body.(io.ReadWriter)
			if s.see(rsp.StatusCode, rsp.Header, ok); ok {
				_, _ = io.WriteString(conn, "line\n")
				text, err := io.ReadAll(conn)
				s.see(string(text), kind(err))
			}
		},
	},
}
