package httplayer_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/gotower/gotower/layer/httplayer"
)

// A server that keeps request smuggling out. The request that is sent here is
// one to net/http alone, and two to many others.
func ExampleGuard() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fmt.Println(err)
		return
	}
	guard := httplayer.NewGuard()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello")
	})}
	go srv.Serve(guard.Listener(l))
	defer srv.Close()

	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /first HTTP/1.1\r\nHost: web\r\n\r\n"+
		"POST / HTTP/1.1\r\nHost: web\r\nContent-Length: 41\r\nTransfer-Encoding: chunked\r\n\r\n"+
		"0\r\n\r\nGET /admin HTTP/1.1\r\nHost: web\r\n\r\n")
	for in := bufio.NewReader(conn); ; {
		rsp, err := http.ReadResponse(in, nil)
		if err != nil {
			break
		}
		body, _ := io.ReadAll(rsp.Body)
		fmt.Printf("%s: %s\n", rsp.Status, body)
	}
	fmt.Println(httplayer.ConflictingLength, guard.Rejected(httplayer.ConflictingLength))
	// Output:
	// 200 OK: hello
	// 400 Bad Request: 400 Bad Request
	// two_framings 1
}
