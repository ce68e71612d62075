// The directory over HTTP by node: server.js HOST PORT.
const fs = require('fs');
const http = require('http');
const [host, port] = process.argv.slice(2);
http.createServer((request, response) => {
  const path = '.' + request.url;
  response.setHeader('Content-Length', fs.statSync(path).size);
  fs.createReadStream(path).pipe(response);
}).listen(Number(port), host);
