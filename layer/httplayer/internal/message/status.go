package message

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"
)

type date struct {
	second int64
	value  string
}

var today atomic.Pointer[date]

// Date returns the value of a Date field for the current time. It formats the value at most
// once a second and caches it.
func Date() string {
	now := time.Now()
	if d := today.Load(); d != nil && d.second == now.Unix() {
		return d.value
	}
	d := &date{now.Unix(), now.UTC().Format(http.TimeFormat)}
	today.Store(d)
	return d.value
}

// StatusLines has the value of [http.Response.Status] for each status, such as "200 OK".
var StatusLines = func() (lines [1000]string) {
	for status := range lines {
		lines[status] = fmt.Sprintf("%03d %s", status, http.StatusText(status))
	}
	return lines
}()
