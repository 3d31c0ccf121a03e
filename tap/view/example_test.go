package view_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/view"
)

// The page of a process, on a port for operators.
func Example() {
	reg := tap.NewRegistry() // which the process's tap.Layer shows its requests to
	page := view.New(view.Config{
		Registry: reg,
		Describe: func() layer.Node { return reg.Describe() }, // better: that of its stack
		Title:    "web-0",
	})
	mux := http.NewServeMux()
	mux.Handle("/view/", http.StripPrefix("/view", page))
	admin := httptest.NewUnstartedServer(mux)
	admin.Config.RegisterOnShutdown(page.Shutdown)
	admin.Start()
	defer admin.Close()

	rsp, err := http.Get(admin.URL + "/view/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	document, _ := io.ReadAll(rsp.Body)
	fmt.Println(rsp.StatusCode, strings.Contains(string(document), `<table id="top-table">`))
	// Output: 200 true
}

// Clients of other machines need a password.
func ExampleConfig_allow() {
	page := view.New(view.Config{Authorize: func(r *http.Request) error {
		if _, word, _ := r.BasicAuth(); word == "open sesame" {
			return nil
		}
		return view.Loopback(r)
	}})
	r := httptest.NewRequest(http.MethodGet, "http://10.0.0.7:9990/", http.NoBody)
	r.RemoteAddr = "10.0.0.8:4242"
	for _, word := range []string{"please", "open sesame"} {
		r.SetBasicAuth("", word)
		w := httptest.NewRecorder()
		page.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 403
	// 200
}
