package template_test

import (
	"fmt"
	"os"

	"github.com/gotower/gotower/examples/tapctl/template"
)

func Example() {
	type request struct {
		Method string `json:"method"`
		Path   string `json:"path"`
	}
	type event struct {
		Request *request `json:"requestInitEvent,omitempty"`
		Status  int      `json:"status,omitempty"`
	}
	t, err := template.Parse("{.requestInitEvent.method} {.requestInitEvent.path}", event{})
	if err != nil {
		panic(err)
	}
	for _, e := range []event{{Request: &request{"GET", "/api/vote"}}, {Status: 200}, {Request: &request{"POST", "/\x1b[2J"}}} {
		if err := t.Execute(os.Stdout, e); err != nil {
			fmt.Println(err)
		}
	}
	_, err = template.Parse("{.requestInit.path}", event{})
	fmt.Println(err)
	// Output:
	// GET /api/vote
	// POST /\x1b[2J
	// at character 1, in {.requestInit.path}: unknown field requestInit; the fields are requestInitEvent, status
}
