package mesh_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"

	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/mesh"
)

// Two proxies use HTTP/2 between them for HTTP/1.1 requests.
func ExampleUpgradeOrigProto() {
	application := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintln(w, r.Proto, r.Host, r.RequestURI, r.Header["L5d-Orig-Proto"])
	}))
	defer application.Close()

	toApplication := httplayer.NewEndpoint(context.Background(), application.Listener.Addr().String())
	between := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(r.Proto, r.Header.Get("L5d-Orig-Proto"))
		httplayer.Handler(mesh.DowngradeOrigProto()(toApplication)).ServeHTTP(w, r)
	})
	inbound := httptest.NewUnstartedServer(between)
	inbound.Config.Protocols = new(http.Protocols)
	inbound.Config.Protocols.SetUnencryptedHTTP2(true)
	inbound.Start()
	defer inbound.Close()

	toInbound := httplayer.NewEndpoint(context.Background(), inbound.Listener.Addr().String(), httplayer.WithHTTP2())
	outbound := httptest.NewServer(httplayer.Handler(mesh.UpgradeOrigProto()(toInbound)))
	defer outbound.Close()

	req, _ := http.NewRequestWithContext(context.Background(), http.MethodGet, outbound.URL+"/books", http.NoBody)
	req.Host = "web.default"
	rsp, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, _ := io.ReadAll(rsp.Body)
	fmt.Print(string(body))
	// Output:
	// HTTP/2.0 HTTP/1.1
	// HTTP/1.1 web.default /books []
}
