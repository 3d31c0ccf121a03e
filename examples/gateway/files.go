package main

import (
	"context"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/gotower/gotower/examples/gateway/config"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// staticFiles returns a service that serves f's files.
func staticFiles(f *config.StaticFiles) httplayer.Service {
	fallback, _ := url.PathUnescape(string(f.Fallback)) // was checked with the configuration
	files := httplayer.FromHandler(http.FileServer(site{http.Dir(f.Root), fallback}))
	return layer.Func[*http.Request, *http.Response](func(ctx context.Context, req *http.Request) (*http.Response, error) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			return nil, &httplayer.StatusError{Code: http.StatusMethodNotAllowed, Header: http.Header{"Allow": {"GET, HEAD"}}}
		}
		rsp, err := files.Call(ctx, req)
		// FileServer's own page does not look like the gateway's other errors.
		if err == nil && rsp.StatusCode == http.StatusNotFound {
			httplayer.HTTP{}.Drain(rsp)
			return nil, &httplayer.StatusError{Code: http.StatusNotFound, Reason: "no file", Detail: "no file has this path"}
		}
		return rsp, err
	})
}

// site is a folder with files. It does not list folders, and hides names that begin with a dot,
// such as .git and .env, except .well-known. If fallback is set, that file stands in for paths
// that do not exist.
type site struct {
	http.Dir
	fallback string
}

// Open returns the file with this path, or the fallback. It implements [http.FileSystem].
func (s site) Open(name string) (http.File, error) {
	file, err := s.open(name)
	if errors.Is(err, fs.ErrNotExist) && s.fallback != "" {
		return s.open(s.fallback)
	}
	return file, err
}

// open returns the file with this path, without the fallback.
func (s site) open(name string) (http.File, error) {
	// Hidden names may occur at any level.
	for segment := range strings.SplitSeq(name, "/") {
		if strings.HasPrefix(segment, ".") && segment != ".well-known" {
			return nil, fs.ErrNotExist
		}
	}
	file, err := s.Dir.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		// FileServer lists a folder without this file, so pretend that the folder does not exist.
		index, missing := s.Dir.Open(path.Join(name, "index.html"))
		if missing == nil {
			_ = index.Close()
		}
		err = missing
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}
