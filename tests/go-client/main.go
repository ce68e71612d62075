// Eight goroutines GET /10k, every second time over a new connection. The output is that of the client "asker" of make compat.
// Go makes its system calls itself, so the library sees only the server's sockets.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

var (
	right atomic.Int64
	lock  sync.Mutex
	wrong = map[string]int{}
	start = time.Now()
)

func kind(err error) string {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "refused"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		return "reset"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "closed"
	case os.IsTimeout(err):
		return "hung"
	}
	said := err.Error()
	return said[strings.LastIndex(said, ":")+1:]
}

func once(client *http.Client, url string) error {
	answer, err := client.Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && (answer.StatusCode != 200 || len(body) != 10240) {
		return fmt.Errorf("answer %d of %d bytes", answer.StatusCode, len(body))
	}
	return err
}

func print(done bool) {
	lock.Lock()
	defer lock.Unlock()
	said, _ := json.Marshal(map[string]interface{}{
		"right": right.Load(), "left": 0, "wrong": wrong, "seconds": time.Since(start).Seconds(), "done": done,
	})
	fmt.Println(string(said))
}

func main() {
	var to string
	var left atomic.Int64
	for i, arg := range os.Args[:len(os.Args)-1] {
		switch arg {
		case "--to":
			to = os.Args[i+1]
		case "--requests":
			requests, _ := strconv.ParseInt(os.Args[i+1], 10, 64)
			left.Store(requests)
		}
	}
	var all sync.WaitGroup
	for i := 0; i < 8; i++ {
		transport := &http.Transport{DisableKeepAlives: i%2 == 1}
		client := &http.Client{Transport: transport, Timeout: 30 * time.Second}
		all.Add(1)
		go func() {
			defer all.Done()
			for left.Add(-1) >= 0 {
				for {
					err := once(client, "http://"+to+"/10k")
					if err == nil {
						right.Add(1)
						break
					}
					lock.Lock()
					wrong[kind(err)]++
					lock.Unlock()
					time.Sleep(10 * time.Millisecond)
				}
			}
		}()
	}
	go func() {
		for {
			time.Sleep(100 * time.Millisecond)
			print(false)
		}
	}()
	all.Wait()
	print(true)
}
